"""The one thread that owns the model. A bounded queue feeds it; turns run in the order in which they came."""

import queue
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog
import torch

from app.engine.archive import Archive
from app.engine.generation import Finished, Generation, GenerationRequest
from app.engine.loading import LoadedModel
from app.engine.memory import give_back
from app.engine.sampling import sample
from app.errors import ServerBusyError, SnapragError
from kv_compression import KVCache, Policy, Prefill, decode_step

PAUSE_S = 1.0

log = structlog.get_logger()


@dataclass(frozen=True)
class EngineSettings:
    """What the engine does with a cache: the policy of the working cache, and what becomes the archive."""

    policy: Policy
    window: int
    archive: Archive
    prefill_chunk: int
    queue_size: int


class Engine:
    """`submit` from any thread; `start` and `stop` in pairs."""

    def __init__(self, loaded: LoadedModel, settings: EngineSettings) -> None:
        self.loaded = loaded
        self.settings = settings
        self._queue: queue.Queue[Generation | None] = queue.Queue(settings.queue_size)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the running step. Turns that run or wait end with ServerBusyError."""
        self._stopping.set()
        try:
            self._queue.put_nowait(None)  # wakes an idle thread; a full queue wakes it anyway
        except queue.Full:
            log.debug("engine_stop_queue_full")
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Turns that wait for the model."""
        return self._queue.qsize()

    def submit(self, request: GenerationRequest, cancelled: threading.Event) -> Generation:
        """Queue a request. ServerBusyError when the queue is full or the engine stops."""
        generation = Generation(request, cancelled, submitted_at=time.perf_counter())
        if self._stopping.is_set():
            raise ServerBusyError("it is stopping", retry_after_s=5)
        try:
            self._queue.put_nowait(generation)
        except queue.Full:
            raise ServerBusyError("too many turns are waiting", retry_after_s=10) from None
        return generation

    def rebuild(self, segments: Iterable[Iterable[memoryview]], fingerprint: str, tokens: int, room: int) -> KVCache:
        """The cache of `tokens` tokens that these chunks are, with room for more. Raises KVCompressionError."""
        model = self.loaded.model
        return KVCache.restore(
            model.config, segments, fingerprint, tokens=tokens, device=model.device, dtype=model.dtype, room=room
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            if (generation := self._next()) is not None:
                self._serve(generation)
                del generation  # and with it the turn's caches, while the thread waits
        while not self._queue.empty():
            generation = self._queue.get_nowait()
            if generation is not None:
                generation.emit(ServerBusyError("it is stopping", retry_after_s=5))

    def _next(self) -> Generation | None:
        """The next of the queue, None to stop. A pause is used to give memory back: never between busy turns, which
        run faster on warm pages."""
        try:
            return self._queue.get(timeout=PAUSE_S)
        except queue.Empty:
            give_back()
            return self._queue.get()

    def _serve(self, generation: Generation) -> None:
        try:
            with torch.inference_mode():
                generation.emit(self._generate(generation))
        except SnapragError as error:
            generation.emit(error)
        except Exception as error:  # one turn's fault must not end the thread that serves all others
            log.exception("generation_failed")
            generation.emit(error)

    def _generate(self, generation: Generation) -> Finished:
        generation.check_cancelled()
        request = generation.request
        started = time.perf_counter()
        restored = request.restore()
        cache = self._empty_cache(len(request.token_ids)) if restored is None else restored
        restored_tokens = cache.length
        restored_at = time.perf_counter()
        run, working = self._prefill(generation, cache, request.token_ids[restored_tokens:])
        kept_tokens = round(working.entries)
        prefilled_at = time.perf_counter()
        reason = self._decode(generation, run.logits, working)
        decoded_at = time.perf_counter()
        segment = None
        if request.keep_archive:
            segment = self.settings.archive.segment(cache, working, run.observation, restored_tokens)
        return Finished(
            reason=reason,
            cached_tokens=restored_tokens,
            kept_tokens=kept_tokens,
            segment=segment,
            replaces=self.settings.archive.replaces,
            queue_ms=(started - generation.submitted_at) * 1000,
            restore_ms=(restored_at - started) * 1000,
            prefill_ms=(prefilled_at - restored_at) * 1000,
            decode_ms=(decoded_at - prefilled_at) * 1000,
        )

    def _empty_cache(self, room: int) -> KVCache:
        model = self.loaded.model
        cache = KVCache(model.config, device=model.device, dtype=model.dtype)
        cache.reserve(room)
        return cache

    def _prefill(self, generation: Generation, cache: KVCache, token_ids: Sequence[int]) -> tuple[Prefill, KVCache]:
        """The prefill, at its end, and the working cache."""
        settings = self.settings
        observe = set(settings.policy.observe)
        if generation.request.keep_archive:
            observe |= set(settings.archive.policy(len(token_ids)).observe)
        run = Prefill(
            self.loaded.model,
            cache,
            token_ids,
            chunk=settings.prefill_chunk,
            window=settings.window,
            observe=observe,
        )
        while not run.step():
            self._check(generation)
        return run, cache.select(settings.policy, run.observation, room=generation.request.max_tokens)

    def _decode(self, generation: Generation, logits: torch.Tensor, working: KVCache) -> str:
        """Emit tokens until the model stops or the limit is reached; every emitted token is in `working`."""
        request = generation.request
        for _ in range(request.max_tokens):
            self._check(generation)
            token = sample(logits, request.temperature)
            if token in self.loaded.eos_token_ids:
                return "stop"
            generation.emit(token)
            logits = decode_step(self.loaded.model, working, token)
        return "length"

    def _check(self, generation: Generation) -> None:
        generation.check_cancelled()
        if self._stopping.is_set():
            raise ServerBusyError("it is stopping", retry_after_s=5)
