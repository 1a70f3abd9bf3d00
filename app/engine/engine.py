"""The one thread that owns the model. Every step runs the next token of each turn that answers, and at most one chunk
of the prompts of those that read, in one pass."""

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog
import torch

from app.engine.generation import Generation, GenerationRequest
from app.engine.loading import LoadedModel
from app.engine.memory import bytes_per_token, give_back
from app.engine.running import CacheSettings, RunningTurn, restore
from app.engine.waiting import RETRY_AFTER_S, WaitingTurns
from app.errors import ServerBusyError, SnapragError, TurnCancelledError
from kv_compression import KVCache, run_together

PAUSE_S = 1.0
RESTORING = 2  # caches that are read at the same time, beside the model

log = structlog.get_logger()


@dataclass(frozen=True)
class EngineSettings:
    """caches: what turns do with theirs. turns: how many run together. memory: bytes that all their caches may take.
    waiting_turns, waiting_tokens, patience_s: of `WaitingTurns`."""

    caches: CacheSettings
    turns: int
    memory: int
    waiting_turns: int
    waiting_tokens: int
    patience_s: float


class Engine:
    """`submit` from any thread; `start` and `stop` in pairs."""

    def __init__(self, loaded: LoadedModel, settings: EngineSettings) -> None:
        self.loaded = loaded
        self.settings = settings
        self._waiting = WaitingTurns(settings.waiting_turns, settings.waiting_tokens, settings.patience_s)
        self._turns: list[RunningTurn] = []
        self._bytes_per_token = bytes_per_token(loaded.model)
        self._restoring = ThreadPoolExecutor(RESTORING, "restoring")
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._stopping = threading.Event()
        self._wake = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the running step. Turns that run or wait end with ServerBusyError."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        self._restoring.shutdown()

    @property
    def waiting(self) -> int:
        """Turns that wait for the model."""
        return len(self._waiting)

    def submit(self, request: GenerationRequest, cancelled: threading.Event) -> Generation:
        """Queue a request. ServerBusyError when too much waits or the engine stops."""
        generation = Generation(request, cancelled, submitted_at=time.perf_counter())
        if self._stopping.is_set():
            raise ServerBusyError("it is stopping", retry_after_s=5)
        self._waiting.put(generation)
        self._wake.set()
        return generation

    def rebuild(self, segments: Iterable[Iterable[memoryview]], fingerprint: str, tokens: int, room: int) -> KVCache:
        """The cache of `tokens` tokens that these chunks are, with room for more. Raises KVCompressionError."""
        model = self.loaded.model
        return KVCache.restore(
            model.config, segments, fingerprint, tokens=tokens, device=model.device, dtype=model.dtype, room=room
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            with torch.inference_mode():
                if not self.step():
                    self._pause()
        for generation in [*(turn.generation for turn in self._turns), *self._drain()]:
            generation.emit(ServerBusyError("it is stopping", retry_after_s=5))

    def step(self) -> bool:
        """One pass of the model over all turns that are ready; False when there is none."""
        self._admit()
        ready = self._ready()
        if not ready:
            return False
        try:
            logits = run_together(self.loaded.model, [turn.piece for turn in ready])
        except Exception as error:  # it cannot be known whose fault it is, and what the caches hold now
            log.exception("pass_failed", turns=len(ready))
            for turn in ready:
                self._end(turn, error)
            return True
        for turn, of_turn in zip(ready, logits, strict=True):
            self._advance(turn, of_turn)
        return True

    def _admit(self) -> None:
        """Let turns in as far as places and memory allow; those that gave up are let go."""
        for generation in self._waiting.leave():
            late = ServerBusyError("the turn waited too long", RETRY_AFTER_S)
            generation.emit(TurnCancelledError() if generation.cancelled.is_set() else late)
        for turn in [turn for turn in self._turns if turn.generation.cancelled.is_set()]:
            self._end(turn, TurnCancelledError())
        while (first := self._waiting.next()) is not None and self._fits(first):
            generation = self._waiting.take()
            future = self._restoring.submit(restore, generation, self.loaded)
            future.add_done_callback(lambda _: self._wake.set())
            self._turns.append(RunningTurn(generation, self.loaded, self.settings.caches, future))

    def _fits(self, generation: Generation) -> bool:
        """Whether there is room for the turn's largest caches beside those of the others. A turn alone always runs."""
        needed = sum(map(self._most, [*(turn.generation for turn in self._turns), generation]))
        return not self._turns or (len(self._turns) < self.settings.turns and needed <= self.settings.memory)

    def _most(self, generation: Generation) -> int:
        """Bytes: the whole sequence and the working cache are held at the same time."""
        tokens, budget = len(generation.request.token_ids), self.settings.caches.policy.budget
        kept = tokens if budget is None else min(budget, tokens)
        return (tokens + kept + generation.request.max_tokens) * self._bytes_per_token

    def _ready(self) -> list[RunningTurn]:
        """Those that answer, and of those that read as many as share one chunk, the ones that waited longest first."""
        for turn in [turn for turn in self._turns if turn.stage == "restoring" and turn.restoring.done()]:
            try:
                turn.begin()
            except Exception as error:  # one turn's fault must not end the thread that serves all others
                self._end(turn, error)
        ready = [turn for turn in self._turns if turn.stage == "answering"]
        room = self.settings.caches.prefill_chunk
        for turn in [turn for turn in self._turns if turn.stage == "reading"]:
            if (tokens := len(turn.piece.token_ids)) <= room:
                room -= tokens
                ready.append(turn)
                self._turns.remove(turn)  # to the end: the others read first next time
                self._turns.append(turn)
        return ready

    def _advance(self, turn: RunningTurn, logits: torch.Tensor) -> None:
        try:
            finished = turn.accept(logits)
        except Exception as error:  # as above
            self._end(turn, error)
        else:
            if finished is not None:
                turn.generation.emit(finished)
                self._turns.remove(turn)

    def _end(self, turn: RunningTurn, error: Exception) -> None:
        if not isinstance(error, SnapragError):
            log.error("generation_failed", exc_info=error)
        self._turns.remove(turn)
        turn.generation.emit(error)

    def _drain(self) -> list[Generation]:
        return [self._waiting.take() for _ in range(len(self._waiting))]

    def _pause(self) -> None:
        """Until something happens. A longer pause is used to give memory back: never between busy turns, which run
        faster on warm pages."""
        if not self._wake.wait(PAUSE_S) and not self._turns:
            give_back()
            self._wake.wait()
        self._wake.clear()
