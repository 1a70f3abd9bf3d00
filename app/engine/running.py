"""A turn in the engine: it restores a cache, reads its prompt, answers, and leaves what later turns need."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from app.engine.archive import Archive
from app.engine.generation import Finished, Generation
from app.engine.loading import LoadedModel
from app.engine.sampling import Sampler
from app.engine.stops import StopStrings
from kv_compression import KVCache, Piece, Policy, Prefill, Segment


@dataclass(frozen=True)
class CacheSettings:
    """What turns do with their caches: the policy of the working cache, and what becomes the archive."""

    policy: Policy
    window: int
    archive: Archive
    prefill_chunk: int


@dataclass(eq=False)
class RunningTurn:
    """`restore` once, in any thread; then in the engine's thread `begin`, and as long as it is not finished `piece`
    says what is to run next, and `accept` takes the logits after it."""

    generation: Generation
    loaded: LoadedModel
    settings: CacheSettings
    restoring: Future[KVCache]
    started: float = field(default_factory=time.perf_counter)
    restored_tokens: int = 0
    kept_tokens: int = 0
    token: int | None = None
    answered: int = 0
    emitted: int = 0
    restored_at: float = 0.0
    prefilled_at: float = 0.0
    cache: KVCache = field(init=False)
    run: Prefill = field(init=False)
    working: KVCache = field(init=False)
    sampler: Sampler = field(init=False)
    stops: StopStrings = field(init=False)

    def __post_init__(self) -> None:
        sampling = self.generation.request.sampling
        self.sampler = Sampler(sampling)
        self.stops = StopStrings(self.loaded.tokenizer, sampling.stop)

    @property
    def stage(self) -> Literal["restoring", "reading", "answering"]:
        """What the turn does now."""
        if not hasattr(self, "run"):
            return "restoring"
        return "reading" if self.token is None else "answering"

    def begin(self) -> None:
        """After `restoring` is done: raises what it raised."""
        request = self.generation.request
        self.cache = self.restoring.result()
        self.restored_tokens, self.restored_at = self.cache.length, time.perf_counter()
        new = request.token_ids[self.restored_tokens :]
        observe = set(self.settings.policy.observe)
        if request.keep_archive:
            observe |= set(self.settings.archive.policy(len(new)).observe)
        self.run = Prefill(
            self.loaded.model,
            self.cache,
            new,
            chunk=self.settings.prefill_chunk,
            window=self.settings.window,
            observe=observe,
        )

    @property
    def piece(self) -> Piece:
        """The next chunk of the prompt, or the last token of the answer."""
        return self.run.piece if self.token is None else Piece(self.working, [self.token])

    def accept(self, logits: Tensor) -> Finished | None:
        """Choose the next token if there is one, and emit those that no stop string can take back."""
        request = self.generation.request
        if self.token is None:
            if not self.run.accept(logits):
                return None
            self.working = self.cache.select(self.settings.policy, self.run.observation, room=request.max_tokens)
            self.kept_tokens, self.prefilled_at = round(self.working.entries), time.perf_counter()
        if self.answered == request.max_tokens:
            return self._finish("length", self.stops.finish())
        self.token = self.sampler.next(logits)
        if self.token in self.loaded.eos_token_ids:
            return self._finish("stop", self.stops.finish())
        self.answered += 1
        certain = self.stops.push(self.token)
        if self.stops.found:
            return self._finish("stop", certain)
        self._emit(certain)
        return None

    def _emit(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            self.generation.emit(token)
        self.emitted += len(token_ids)

    def _segment(self) -> Segment | None:
        """For later turns: the prompt and all tokens that were emitted, none of a stop string."""
        surplus = self.working.length - self.cache.length - self.emitted
        if surplus:
            try:
                self.working.crop(-surplus)
            except ValueError:  # a sliding window left behind what it would need: the next turn reads this one again
                return None
        archive = self.settings.archive
        return archive.segment(self.cache, self.working, self.run.observation, self.restored_tokens)

    def _finish(self, reason: str, token_ids: Sequence[int]) -> Finished:
        self._emit(token_ids)
        decoded_at = time.perf_counter()
        segment = self._segment() if self.generation.request.keep_archive else None
        return Finished(
            reason=reason,
            tail=self.stops.tail,
            cached_tokens=self.restored_tokens,
            kept_tokens=self.kept_tokens,
            segment=segment,
            replaces=self.settings.archive.replaces,
            queue_ms=(self.started - self.generation.submitted_at) * 1000,
            restore_ms=(self.restored_at - self.started) * 1000,
            prefill_ms=(self.prefilled_at - self.restored_at) * 1000,
            decode_ms=(decoded_at - self.prefilled_at) * 1000,
        )


@torch.inference_mode()
def restore(generation: Generation, loaded: LoadedModel) -> KVCache:
    """The cache that the turn starts with: what was stored of its session, or an empty one with room for all of it."""
    restored = generation.request.restore()
    if restored is not None:
        return restored
    model = loaded.model
    cache = KVCache(model.config, device=model.device, dtype=model.dtype)
    cache.reserve(len(generation.request.token_ids))
    return cache
