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
    Storage,
    attach,
    decode_segment,
    decode_step,
    encode_segment,
)
from kv_compression.frame import pack_chunks
from tests.kv_helpers import SLIDING

TURNS = (40, 3, 30)
RAW = Storage()
STORAGES = [RAW, Storage("bfloat16"), Storage("fp8"), Storage("int8", compress=True), Storage("int4", 32)]


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


def _encoded(segments: Sequence[Segment], storage: Storage = RAW) -> list[list[bytes]]:
    return [encode_segment(segment, "f", 2000, storage=storage) for segment in segments]


def _restore(
    model: PreTrainedModel, chunks: Sequence[Sequence[bytes]], tokens: int = sum(TURNS), room: int = 0
) -> KVCache:
    def views(segment: Sequence[bytes]) -> Iterator[memoryview]:
        yield from map(memoryview, segment)

    streams = (views(segment) for segment in chunks)
    return KVCache.restore(model.config, streams, "f", tokens=tokens, device="cpu", dtype=torch.float32, room=room)


def _parts(cache: KVCache) -> list[torch.Tensor]:
    return _of(cache.segment(0))


def _of(segment: Segment) -> list[torch.Tensor]:
    heads = [head for layer in segment.layers for head in layer]
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


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_what_was_stored_smaller_comes_into_a_cache_of_its_own_type(model: PreTrainedModel, storage: Storage) -> None:
    """As by way of decoded segments, and near what it was: the logits show it."""
    cache, segments = _session(model)
    chunks = _encoded(segments, storage)
    restored = _restore(model, chunks, room=5)
    decoded = [decode_segment(stored, "f") for stored in chunks]
    other = KVCache.from_segments(model.config, decoded, device="cpu", dtype=torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(_parts(restored), _parts(other), strict=True))
    expected, got = (decode_step(model, each, 3) for each in (cache, restored))
    off = float((got - expected).norm() / expected.norm())
    assert off < {"raw": 1e-9, "bfloat16": 0.01, "fp8": 0.1, "int8": 0.02, "int4": 0.2}[storage.format]
    assert off > 0 or storage.format == "raw"


def test_ragged_heads_that_were_stored_smaller_go_to_their_places(model: PreTrainedModel) -> None:
    cache, _ = _session(model)
    entries = cache.segment(0).layers
    chosen = [
        layer.take([torch.arange(count // (3 * head + 1)) for head, count in enumerate(layer.counts)])
        for layer in entries
    ]
    kept = Segment(0, cache.length, [chosen[1] if index == 1 else layer for index, layer in enumerate(entries)])
    assert len(set(kept.layers[1].counts)) > 1
    chunks = encode_segment(kept, "f", 2000, storage=Storage("int8"))
    parts = zip(_parts(_restore(model, [chunks])), _of(decode_segment(chunks, "f")), strict=True)
    assert all(torch.equal(a, b) for a, b in parts)


@pytest.mark.parametrize("storage", [RAW, Storage("int4", compress=True)], ids=str)
def test_on_another_device_the_room_is_there(model: PreTrainedModel, storage: Storage) -> None:
    cache, segments = _session(model)
    restored = KVCache.restore(
        model.config, _encoded(segments, storage), "f", tokens=cache.length, device="meta", dtype=torch.float32
    )
    assert (restored.length, restored.nbytes) == (cache.length, cache.nbytes)
    held = [layer.buffer.entries for layer in restored.layers]
    assert {tensor.device.type for each in held for tensor in (each.keys, each.values, each.positions)} == {"meta"}


@pytest.mark.parametrize("storage", [RAW, Storage("int4", compress=True)], ids=str)
def test_a_damaged_chunk_anywhere_is_noticed(model: PreTrainedModel, storage: Storage) -> None:
    chunks = _encoded(_session(model)[1], storage)
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
    for storage in STORAGES:
        with pytest.raises(SegmentError, match="another type"):
            _restore(model, _encoded(half, storage))
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
    text = json.dumps(
        {"start": 0, "stop": sum(TURNS), "dtype": "float32", "storage": ["raw", 64], "layers": [shape] * 3}
    ).encode()
    claimed = 3 * sum(shape[0]) * ((shape[1] + shape[2]) * 4 + 4 * (shape[3] < 0)) + 4 + len(text)
    chunk = pack_chunks([memoryview(struct.pack("<I", len(text)) + text)], "f", 4000)[0]
    layout = struct.Struct("<4sHIIQQB16s16s16s")
    fields = list(layout.unpack_from(chunk))
    fields[3:5] = [2**31, claimed % 2**64]
    header = layout.pack(*fields)
    forged = header + xxhash.xxh3_64_digest(header) + chunk[layout.size + 8 :]
    tracemalloc.start()
    with pytest.raises((CodecError, SegmentError)):
        _restore(model, [[forged]])
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
