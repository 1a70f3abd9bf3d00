"""Engines over tiny models, taken step by step."""

import threading
from collections.abc import Sequence
from concurrent.futures import wait

import torch

from app.engine.archive import Archive
from app.engine.engine import Engine, EngineSettings
from app.engine.generation import Finished, Generation, GenerationRequest
from app.engine.loading import LoadedModel
from app.engine.running import CacheSettings
from kv_compression import HeadAdaptive, SnapKV, attach

NEVER = threading.Event()
POLICY = SnapKV(24, window=6, kernel=5, allocation=HeadAdaptive())


def engine_of(
    loaded: LoadedModel,
    turns: int = 4,
    memory: int = 2**30,
    waiting: int = 32,
    tokens: int = 10**6,
    patience_s: float = 60.0,
) -> Engine:
    """One that does not run yet."""
    attach(loaded.model)
    caches = CacheSettings(POLICY, 6, Archive("full", 1.0, HeadAdaptive()), prefill_chunk=16)
    return Engine(loaded, EngineSettings(caches, turns, memory, waiting, tokens, patience_s))


def step(engine: Engine) -> bool:
    """One that waits for caches that are being restored."""
    engine._admit()
    wait([turn.restoring for turn in engine._turns])
    with torch.inference_mode():
        return engine.step()


def run(engine: Engine, requests: Sequence[GenerationRequest]) -> list[tuple[list[int], Finished]]:
    """All at once, to their ends."""
    generations = [engine.submit(request, NEVER) for request in requests]
    while step(engine):
        pass
    return [outcome(generation) for generation in generations]


def outcome(generation: Generation) -> tuple[list[int], Finished]:
    """The tokens that were emitted, and the end."""
    tokens = list(generation.tokens(on_wait=lambda: None))
    assert generation.finished is not None
    return tokens, generation.finished
