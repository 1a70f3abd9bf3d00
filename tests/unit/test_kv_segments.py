"""Segments: cut out, joined and put together; whatever does not fit together is refused."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from kv_compression import KVCache, LayerEntries, Prefill, Segment, SegmentError, SnapKV, attach, decode_step, join
from tests.kv_helpers import SLIDING


@pytest.fixture
def model(tiny_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """A model with layers of both kinds."""
    model = tiny_model("gemma3_text", **SLIDING)
    attach(model)
    return model


def _cache(model: PreTrainedModel, tokens: int, pieces: int = 1) -> KVCache:
    cache = KVCache(model.config, device="cpu", dtype=torch.float32)
    for _ in range(pieces):
        Prefill(model, cache, [5 + at % 7 for at in range(tokens)], chunk=1000, window=6).step()
    return cache


def _restored(model: PreTrainedModel, *segments: Segment) -> KVCache:
    return KVCache.from_segments(model.config, segments, device="cpu", dtype=torch.float32)


def _equal(one: KVCache, other: KVCache) -> bool:
    pairs = [
        (getattr(a, part), getattr(b, part))
        for of_one, of_other in zip(one.segment(0).layers, other.segment(0).layers, strict=True)
        for a, b in zip(of_one, of_other, strict=True)
        for part in ("keys", "values", "positions")
    ]
    return one.length == other.length and all(torch.equal(a, b) for a, b in pairs)


def test_one_segment_per_turn_makes_the_same_cache(model: PreTrainedModel) -> None:
    cache, segments = _cache(model, 0, 0), []
    for tokens in (40, 3, 30, 1):
        start = cache.length
        Prefill(model, cache, list(range(3, 3 + tokens)), window=6).step()
        segments.append(cache.segment(start))
    assert _equal(_restored(model, *segments), cache)
    joined = join(join(segments[0], segments[1]), join(segments[2], segments[3]))
    assert (joined.start, joined.stop) == (0, 74)
    assert _equal(_restored(model, joined), cache)


def test_a_restored_cache_has_room_and_keeps_its_bytes(model: PreTrainedModel) -> None:
    cache = _cache(model, 40)
    restored = KVCache.from_segments(model.config, [cache.segment(0)], device="cpu", dtype=torch.float32, room=10)
    assert restored.nbytes == cache.nbytes == cache.segment(0).nbytes
    places = {layer.buffer.entries.keys.data_ptr() for layer in restored.layers if not layer.sliding_window}
    for _ in range(10):
        decode_step(model, restored, 7)
    assert places == {layer.buffer.entries.keys.data_ptr() for layer in restored.layers if not layer.sliding_window}


def test_another_dtype_can_be_asked_for(model: PreTrainedModel) -> None:
    segment = _cache(model, 20).segment(0)
    cache = KVCache.from_segments(model.config, [segment], device="cpu", dtype=torch.bfloat16)
    assert {layer.keys.dtype for layer in cache.segment(0).layers} == {torch.bfloat16}


def test_later_tokens_do_not_change_a_segment(model: PreTrainedModel) -> None:
    cache = _cache(model, 40)
    segment = cache.segment(0)
    before = [head.keys.clone() for layer in segment.layers for head in layer]
    for _ in range(60):
        decode_step(model, cache, 7)
    assert all(map(torch.equal, before, [head.keys for layer in segment.layers for head in layer]))


def test_an_empty_piece_is_a_segment(model: PreTrainedModel) -> None:
    cache = _cache(model, 40)
    assert {layer.total for layer in cache.segment(40).layers} == {0}
    assert _equal(_restored(model, cache.segment(0), cache.segment(40)), cache)


def test_a_compressed_region_is_cut_out_whole(model: PreTrainedModel) -> None:
    cache = KVCache(model.config, device="cpu", dtype=torch.float32)
    run = Prefill(model, cache, torch.randint(3, 96, (60,)).tolist(), window=6)
    run.step()
    working = cache.select(SnapKV(24, 6, 5), run.observation)
    decode_step(model, working, 7)
    assert _equal(_restored(model, working.segment(0)), working)
    assert {layer.counts for layer in working.segment(60).layers} == {(1, 1)}
    positions = [head.positions for head in working.layers[1].buffer.entries]
    split = next(at for at in range(60) if (positions[0] < at).sum() != (positions[1] < at).sum())
    parts = working.segment(0, split), working.segment(split)
    assert len(set(parts[0].layers[1].counts)) == 2
    assert _equal(_restored(model, *parts), working)
    assert _equal(_restored(model, join(*parts)), working)


def test_segments_that_are_no_sequence_are_refused(model: PreTrainedModel) -> None:
    cache = _cache(model, 40)
    first, second = cache.segment(0, 20), cache.segment(20)
    other = Segment(0, 40, first.layers[:2])
    keys = torch.zeros(2, 20, 4)
    wider = Segment(
        20, 40, [LayerEntries.stack(keys, keys, torch.arange(20, 40).expand(2, -1).int()) for _ in second.layers]
    )
    for segments, reason in [
        ([], "does not begin"),
        ([second], "does not begin"),
        ([cache.segment(0, 30), second], "ends at 30"),
        ([cache.segment(0, 10), second], "ends at 10"),
        ([other], "another number"),
        ([cache.segment(0, 20), wider], "different shapes"),
        ([first], "lacks some"),  # a sliding layer's last entries before token 20 are gone
    ]:
        with pytest.raises(SegmentError, match=reason):
            _restored(model, *segments)
    with pytest.raises(SegmentError, match="ends at 40"):
        join(second, first)


def test_ranges_outside_of_the_sequence_are_refused(model: PreTrainedModel) -> None:
    cache = _cache(model, 40)
    for start, stop in [(-1, 10), (41, None), (10, 5), (0, 41)]:
        with pytest.raises(SegmentError, match="not within"):
            cache.segment(start, stop)
    with pytest.raises(SegmentError, match="empty"):
        _cache(model, 0, 0).segment(0)
