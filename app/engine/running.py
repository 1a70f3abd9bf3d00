"""A turn in the engine: it restores a cache, reads its prompt, answers, and leaves what later turns need."""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from app.engine.archive import Archive
from app.engine.generation import Finished, Generation
from app.engine.loading import LoadedModel
from app.engine.sampling import sample
from kv_compression import KVCache, Piece, Policy, Prefill


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
    emitted: int = 0
    restored_at: float = 0.0
    prefilled_at: float = 0.0
    cache: KVCache = field(init=False)
    run: Prefill = field(init=False)
    working: KVCache = field(init=False)

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
        """Emit the next token if there is one. Every emitted token is in `working` at the end."""
        request = self.generation.request
        if self.token is None:
            if not self.run.accept(logits):
                return None
            self.working = self.cache.select(self.settings.policy, self.run.observation, room=request.max_tokens)
            self.kept_tokens, self.prefilled_at = round(self.working.entries), time.perf_counter()
        if self.emitted == request.max_tokens:
            return self._finish("length")
        self.token = sample(logits, request.temperature)
        if self.token in self.loaded.eos_token_ids:
            return self._finish("stop")
        self.generation.emit(self.token)
        self.emitted += 1
        return None

    def _finish(self, reason: str) -> Finished:
        decoded_at, archive, segment = time.perf_counter(), self.settings.archive, None
        if self.generation.request.keep_archive:
            segment = archive.segment(self.cache, self.working, self.run.observation, self.restored_tokens)
        return Finished(
            reason=reason,
            cached_tokens=self.restored_tokens,
            kept_tokens=self.kept_tokens,
            segment=segment,
            replaces=archive.replaces,
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
