"""Restoring from chunks as they come: the same cache as from segments, and nothing from chunks that are not its own."""

import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import xxhash
from transformers import PreTrainedModel

from kv_compression import (
    CodecError,
    KVCache,
    LayerEntries,
    Prefill,
    Segment,
    SegmentError,
    SnapKV,
    attach,
    decode_step,
    encode_segment,
)
from kv_compression.frame import pack_chunks

SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
TURNS = (40, 3, 30)


@pytest.fixture
def model(tiny_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """A model with layers of both kinds."""
    model = tiny_model("gemma3_text", **SLIDING)
    attach(model)
    return model


def _session(model: PreTrainedModel) -> tuple[KVCache, list[Segment]]:
    """A cache after three turns, and a segment of each."""
    cache, segments = KVCache(model.config, device="cpu", dtype=torch.float32), []
    for tokens in TURNS:
        start = cache.length
        Prefill(model, cache, list(range(3, 3 + tokens)), window=6).step()
        segments.append(cache.segment(start))
    return cache, segments


def _encoded(segments: Sequence[Segment]) -> list[list[bytes]]:
    return [encode_segment(segment, "f", 2000) for segment in segments]


def _restore(
    model: PreTrainedModel, chunks: Sequence[Sequence[bytes]], tokens: int = sum(TURNS), room: int = 0
) -> KVCache:
    def views(segment: Sequence[bytes]) -> Iterator[memoryview]:
        yield from map(memoryview, segment)

    streams = (views(segment) for segment in chunks)
    return KVCache.restore(model.config, streams, "f", tokens=tokens, device="cpu", dtype=torch.float32, room=room)


def _parts(cache: KVCache) -> list[torch.Tensor]:
    heads = [head for layer in cache.segment(0).layers for head in layer]
    return [tensor for head in heads for tensor in (head.keys, head.values, head.positions)]


def test_the_cache_is_the_same(model: PreTrainedModel) -> None:
    cache, segments = _session(model)
    restored = _restore(model, _encoded(segments), room=5)
    assert (restored.length, restored.nbytes) == (cache.length, cache.nbytes)
    assert all(torch.equal(a, b) for a, b in zip(_parts(restored), _parts(cache), strict=True))
    place = restored.layers[1].buffer.entries.keys.data_ptr()
    for token in range(3, 8):
        assert torch.equal(decode_step(model, restored, token), decode_step(model, cache, token))
    assert restored.layers[1].buffer.entries.keys.data_ptr() == place


def test_a_compressed_cache_is_the_same(model: PreTrainedModel) -> None:
    cache = KVCache(model.config, device="cpu", dtype=torch.float32)
    run = Prefill(model, cache, [5 + at % 11 for at in range(60)], window=6)
    run.step()
    working = cache.select(SnapKV(24, 6, 5), run.observation)
    decode_step(model, working, 7)
    restored = _restore(model, _encoded([working.segment(0)]), tokens=61)
    assert all(torch.equal(a, b) for a, b in zip(_parts(restored), _parts(working), strict=True))


def test_a_damaged_chunk_anywhere_is_noticed(model: PreTrainedModel) -> None:
    chunks = _encoded(_session(model)[1])
    for segment in range(len(chunks)):
        for index in range(len(chunks[segment])):
            damaged = [list(pieces) for pieces in chunks]
            at = len(damaged[segment][index]) // 2
            damaged[segment][index] = chunks[segment][index][:at] + b"?" + chunks[segment][index][at + 1 :]
            if damaged != chunks:
                with pytest.raises(CodecError):
                    _restore(model, damaged)


def test_missing_mixed_and_rearranged_chunks_are_noticed(model: PreTrainedModel) -> None:
    cache, segments = _session(model)
    chunks = _encoded(segments)
    zeros = [replace(p, keys=p.keys * 0, values=p.values * 0) for p in segments[0].layers]
    other = encode_segment(Segment(0, TURNS[0], zeros), "f", 2000)
    for first in (
        chunks[0][:-1],
        chunks[0][1:],
        [*chunks[0], chunks[0][-1]],
        chunks[0][::-1],
        [],
        [*chunks[0][:-1], other[-1]],
    ):
        with pytest.raises(CodecError):
            _restore(model, [first, *chunks[1:]])
    for order in ([1, 0, 2], [0, 2], [1, 2], [0, 0, 1], []):
        with pytest.raises(SegmentError):
            _restore(model, [chunks[index] for index in order])
    for tokens in (sum(TURNS) - 1, sum(TURNS) + 1):
        with pytest.raises(SegmentError):
            _restore(model, chunks, tokens=tokens)
    assert cache.length == sum(TURNS)


def test_another_type_or_model_is_refused(model: PreTrainedModel, tiny_model: Callable[..., PreTrainedModel]) -> None:
    segments = _session(model)[1]
    half = [
        Segment(s.start, s.stop, [replace(p, keys=p.keys.half(), values=p.values.half()) for p in s.layers])
        for s in segments
    ]
    with pytest.raises(SegmentError, match="another type"):
        _restore(model, _encoded(half))
    with pytest.raises(SegmentError, match="another sequence or model"):
        _restore(tiny_model(num_hidden_layers=2), _encoded(segments))


def test_a_later_segment_of_other_shapes_is_refused(model: PreTrainedModel) -> None:
    """As many bytes, laid out otherwise."""
    segments = _session(model)[1]
    layers = [
        LayerEntries.stack(p.keys.reshape(1, -1, 16), p.values.reshape(1, -1, 16), p.positions[: p.counts[0]][None])
        for p in (LayerEntries.join([[head] for head in layer]) for layer in segments[1].layers)
    ]
    with pytest.raises(SegmentError):
        _restore(model, _encoded([segments[0], Segment(segments[1].start, segments[1].stop, layers), segments[2]]))


@pytest.mark.parametrize("shape", [[[40] * 999, 2**20, 2**20, 0], [[40] * 2, 2**30, 8, 0], [[40] * 9999, 8, 8, -1]])
def test_a_forged_size_takes_no_memory(shape: list[Any], model: PreTrainedModel) -> None:
    """Headers and digests are right, and claim bytes that never come."""
    text = json.dumps({"start": 0, "stop": sum(TURNS), "dtype": "float32", "layers": [shape] * 3}).encode()
    claimed = 3 * sum(shape[0]) * ((shape[1] + shape[2]) * 4 + 4 * (shape[3] < 0)) + 4 + len(text)
    chunk = pack_chunks([memoryview(struct.pack("<I", len(text)) + text)], "f", 4000)[0]
    layout = struct.Struct("<4sHIIQ16s16s16s")
    fields = list(layout.unpack_from(chunk))
    fields[3:5] = [2**31, claimed % 2**64]
    header = layout.pack(*fields)
    forged = header + xxhash.xxh3_64_digest(header) + chunk[layout.size + 8 :]
    tracemalloc.start()
    with pytest.raises((CodecError, SegmentError)):
        _restore(model, [[forged]])
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
