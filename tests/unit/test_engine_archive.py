"""The archive: what each kind leaves of a turn, and that a follow-up goes on from it."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

import app.engine.archive
from app.engine.archive import Archive
from app.settings import ArchiveKind
from kv_compression import KVCache, Prefill, Profile, SnapKV, Uniform, attach, decode_step
from tests.kv_helpers import random_tokens

PROFILE = Profile(((0.4, 2.2), (1.6, 0.3), (0.5, 1.0)))


@pytest.mark.parametrize(("kind", "kept"), [("full", 80), ("expected_attention", 20), ("keydiff", 20), ("knorm", 20)])
@pytest.mark.parametrize("allocation", [Uniform(), PROFILE])
def test_two_turns(
    kind: ArchiveKind,
    kept: int,
    allocation: Uniform | Profile,
    tiny_model: Callable[..., PreTrainedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app.engine.archive, "LEAST", 8)
    model, archive, segments = tiny_model("llama"), Archive(kind, 0.25, allocation), []
    attach(model)
    cache = KVCache(model.config, device="cpu", dtype=torch.float32)
    for turn, new in enumerate((80, 24)):
        restored = cache.length
        run = Prefill(model, cache, random_tokens(new, turn), window=6, observe=archive.policy(new).observe)
        run.step()
        working = cache.select(SnapKV(16, window=6), run.observation)
        for token in (5, 6, 7):
            decode_step(model, working, token)
        segment = archive.segment(cache, working, run.observation, restored)
        assert (segment.start, segment.stop) == (restored, restored + new + 3)
        segments.append(segment)
        cache = KVCache.from_segments(model.config, segments, device="cpu", dtype=torch.float32)
    first = sum(layer.total for layer in segments[0].layers) / 6
    second = sum(layer.total for layer in segments[1].layers) / 6
    assert (first, second) == (pytest.approx(kept + 3, abs=1), pytest.approx((24 if kind == "full" else 8) + 3, abs=1))
    assert cache.length == 110


def test_short_turns_stay_whole() -> None:
    assert Archive("knorm", 0.25, Uniform()).policy(300).budget == 256
    assert Archive("knorm", 0.25, Uniform()).policy(4000).budget == 1000
