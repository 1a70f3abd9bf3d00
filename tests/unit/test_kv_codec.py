"""The codec: everything survives the round trip, and nothing but what was written is read."""

import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
import torch
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_compression import CodecError, LayerEntries, Segment, Storage, decode_segment, encode_segment
from kv_compression.codec import CHUNK_BYTES
from kv_compression.frame import pack_chunks

STORAGES = [
    Storage(name, 4, compress) for name in ("raw", "bfloat16", "fp8", "int8", "int4") for compress in (False, True)
]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """Layers and heads of different sizes, with and without gaps between positions, with NaN and infinity."""
    dtype = draw(st.sampled_from(DTYPES))
    start = draw(st.integers(0, 100_000))
    length = draw(st.integers(0, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        heads, entries = draw(st.integers(1, 3)), draw(st.integers(0, length))
        rows = [torch.randperm(length, generator=generator)[:entries].sort().values for _ in range(heads)]
        if draw(st.booleans()):
            rows = [torch.arange(entries)] * heads
        sizes = [draw(st.integers(1, 9)) for _ in range(2)]
        keys, values = (_random(dtype, heads, entries, size, generator) for size in sizes)
        layer = LayerEntries.stack(keys, values, (start + torch.stack(rows)).int())
        ends = [draw(st.integers(0, entries)) if draw(st.booleans()) else entries for _ in range(heads)]
        layers.append(layer.slice([0] * heads, ends))
    return Segment(start, start + length, layers)


def _random(dtype: torch.dtype, heads: int, entries: int, size: int, generator: torch.Generator) -> torch.Tensor:
    shape = (heads, entries, size * dtype.itemsize)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).view(dtype)


def _parts(segment: Segment) -> list[torch.Tensor]:
    heads = [head for layer in segment.layers for head in layer]
    return [tensor for head in heads for tensor in (head.keys, head.values, head.positions)]


def _same(one: Segment, other: Segment) -> bool:
    pairs = zip(_parts(one), _parts(other), strict=True)
    same = all(a.dtype == b.dtype and a.shape == b.shape and _bytes(a) == _bytes(b) for a, b in pairs)
    return same and (one.start, one.stop) == (other.start, other.stop)


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())


def _segment(entries: int = 40, value: float = 1.0) -> Segment:
    positions = torch.arange(entries, dtype=torch.int32).expand(2, -1)
    gaps = positions.clone()
    gaps[1, entries // 2 :] += 3
    filled = torch.full((2, entries, 4), value, dtype=torch.bfloat16)
    return Segment(
        0, entries + 3, [LayerEntries.stack(filled, filled, positions), LayerEntries.stack(filled, filled, gaps)]
    )


@settings(deadline=None)
@given(segment=segments(), chunk_bytes=st.integers(120, 3000), fingerprint=st.text(), compress=st.booleans())
def test_round_trip(segment: Segment, chunk_bytes: int, fingerprint: str, compress: bool) -> None:
    chunks = encode_segment(segment, fingerprint, chunk_bytes, storage=Storage(compress=compress))
    assert all(len(chunk) <= chunk_bytes for chunk in chunks)
    assert _same(decode_segment(chunks, fingerprint), segment)


def test_bytes_are_the_same_every_time_and_little_more_than_the_tensors() -> None:
    chunks = encode_segment(_segment(4000), "f")
    assert chunks == encode_segment(_segment(4000), "f")
    tensors = 4 * 2 * 4000 * 4 * 2
    positions = 2 * 4000 * 4  # of the layer with gaps; the other has none stored
    assert sum(map(len, chunks)) - tensors - positions < 1000


def test_a_large_segment_makes_chunks_below_the_power_of_two() -> None:
    chunks = encode_segment(_segment(200_000), "f")
    assert len(chunks) == 4
    assert {len(chunk) for chunk in chunks[:-1]} == {CHUNK_BYTES}
    assert CHUNK_BYTES <= 4 * 2**20 - 64
    assert _same(decode_segment(chunks, "f"), _segment(200_000))


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_no_changed_byte_is_read(data: st.DataObject) -> None:
    chunks = encode_segment(_segment(), "f", 300, storage=data.draw(st.sampled_from(STORAGES)))
    index = data.draw(st.integers(0, len(chunks) - 1))
    at = data.draw(st.integers(0, len(chunks[index]) - 1))
    changed = bytearray(chunks[index])
    changed[at] ^= data.draw(st.integers(1, 255))
    chunks[index] = bytes(changed)
    with pytest.raises(CodecError):
        decode_segment(chunks, "f")


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_no_truncated_extended_or_rearranged_chunks_are_read(data: st.DataObject) -> None:
    chunks = encode_segment(_segment(), "f", 300, storage=data.draw(st.sampled_from(STORAGES)))
    index = data.draw(st.integers(0, len(chunks) - 1))
    other = data.draw(st.integers(0, len(chunks) - 1).filter(lambda at: at != index))
    damage: Callable[[list[bytes]], None] = data.draw(
        st.sampled_from(
            [
                lambda c: c.__setitem__(index, c[index][: data.draw(st.integers(0, len(c[index]) - 1))]),
                lambda c: c.__setitem__(index, c[index] + b"\0"),
                lambda c: c.__setitem__(index, c[other]),
                lambda c: c.pop(index),
                lambda c: c.append(c[index]),
                lambda c: c.insert(index, b""),
                lambda c: c.clear(),
                lambda c: c.reverse(),
            ]
        )
    )
    damage(chunks)
    with pytest.raises(CodecError):
        decode_segment(chunks, "f")


@given(chunks=st.lists(st.binary(max_size=300), max_size=4))
def test_random_bytes_are_not_read(chunks: list[bytes]) -> None:
    with pytest.raises(CodecError):
        decode_segment(chunks, "f")


def test_chunks_of_another_segment_are_not_mixed_in() -> None:
    one, other = (encode_segment(_segment(value=value), "f", 300) for value in (1.0, 2.0))
    with pytest.raises(CodecError, match="different segments"):
        decode_segment([one[0], *other[1:]], "f")


def test_another_fingerprint_is_refused() -> None:
    with pytest.raises(CodecError, match="another model or configuration"):
        decode_segment(encode_segment(_segment(), "f"), "g")


def test_what_compresses_well_takes_few_bytes() -> None:
    """All chunks but the last are full before they are compressed, and never longer for it."""
    zeros, noise = _segment(200_000, 0.0), encode_segment(_random_segment(), "f", storage=Storage(compress=True))
    plain, packed = (encode_segment(zeros, "f", storage=Storage(compress=compress)) for compress in (False, True))
    assert len(packed) == len(plain)
    assert sum(map(len, packed)) < sum(map(len, plain)) / 100
    assert _same(decode_segment(packed, "f"), zeros)
    assert sum(map(len, noise)) <= sum(map(len, encode_segment(_random_segment(), "f")))
    assert max(map(len, encode_segment(zeros, "f", 2**25, storage=Storage(compress=True)))) < CHUNK_BYTES


def _random_segment() -> Segment:
    generator = torch.Generator().manual_seed(0)
    keys = _random(torch.float32, 2, 999, 8, generator)
    positions = torch.arange(999, dtype=torch.int32).expand(2, -1)
    return Segment(0, 999, [LayerEntries.stack(keys, keys, positions)])


def _forged(**changes: object) -> list[bytes]:
    """Chunks with right digests around a description that claims something else, and 64 bytes of tensors."""
    claimed = {"start": 0, "stop": 4, "dtype": "float32", "storage": ["raw", 64], "layers": [[[2], 4, 4, 0]]}
    claimed |= changes
    text = json.dumps(claimed).encode()
    return pack_chunks([memoryview(struct.pack("<I", len(text)) + text + bytes(64))], "f", 4096)


def test_an_honest_forgery_is_read() -> None:
    assert decode_segment(_forged(), "f").layers[0].counts == (2,)


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": [[[2**31 - 1], 4, 4, 0]]},
        {"layers": [[[2**31 - 1] * 99, 2**31 - 1, 2**31 - 1, 0]]},
        {"layers": [[[2**62], 4, 4, 0]]},
        {"layers": [[[-2], 4, 4, 0]]},
        {"layers": [[[], 4, 4, 0]]},
        {"layers": [[2, 4, 4, 0]]},
        {"layers": [[[1, 2], 4, 4, 0]]},
        {"layers": [[[2, 0], 4, 4, 0]]},
        {"layers": [[[2], 0, 8, 0]]},
        {"layers": [[[2], 4, 4, -2]]},
        {"layers": [[[2], 4, 4, 3]]},
        {"layers": [[[2], 4, 4, 2**31 - 1]]},
        {"layers": [[[2], 4, 4]]},
        {"layers": [[[2], 4, 4.0, 0]]},
        {"layers": [[[True], 4, 4, 0]]},
        {"layers": []},
        {"layers": {"a": 1}},
        {"layers": None},
        {"layers": "abcde"},
        {"dtype": "int64"},
        {"dtype": ["float32"]},
        {"dtype": "bfloat16"},
        {"start": 3},
        {"start": -1},
        {"start": 1.0},
        {"stop": 1},
        {"stop": 2**40, "start": 2**40},
        {"stop": None},
        {"storage": None},
        {"storage": []},
        {"storage": ["int8", 64]},
        {"storage": ["int4", 64]},
        {"storage": ["bfloat16", 64]},
        {"storage": ["int3", 64]},
        {"storage": [["raw"], 64]},
        {"storage": ["raw", 2**40]},
        {"storage": ["raw", "64"]},
        {"storage": ["raw", 64, False, 1]},
        {"storage": {"format": "raw"}},
        {"storage": ["int4", 64], "layers": [[[2**31 - 1] * 99, 2**31 - 1, 2**31 - 1, 0]]},
        {"storage": ["int8", 4096], "layers": [[[1], 2**30, 2**30, 0]]},
    ],
)
def test_a_description_that_claims_something_else_is_refused(changes: dict[str, object]) -> None:
    tracemalloc.start()
    with pytest.raises(CodecError):
        decode_segment(_forged(**changes), "f")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\1",
        struct.pack("<I", 2**32 - 1) + b"{}",
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 4) + b"\xff\xfe\xfd\xfc",
        struct.pack("<I", 100_000) + b"[" * 100_000,
        struct.pack("<I", 2**20 + 1) + b" " * 2**20 + b"1",
        struct.pack("<I", 20_000) + b"9" * 20_000,
    ],
)
def test_a_body_without_a_description_is_refused(body: bytes) -> None:
    with pytest.raises(CodecError):
        decode_segment(pack_chunks([memoryview(body)], "f", 2**21), "f")


@pytest.mark.parametrize("positions", [[2, 1], [1, 1], [-1, 1], [1, 4]])
def test_positions_out_of_order_or_range_are_refused(positions: list[int]) -> None:
    keys = torch.zeros(1, 2, 4)
    segment = Segment(0, 4, [LayerEntries.stack(keys, keys, torch.tensor([positions], dtype=torch.int32))])
    with pytest.raises(CodecError, match="positions"):
        decode_segment(encode_segment(segment, "f"), "f")


def _forged_chunk(chunk: bytes, payload: bytes | None = None, **changes: object) -> bytes:
    """With right digests, as somebody who knows the format would write it."""
    layout = struct.Struct("<4sHIIQQB16s16s16s")
    names = ("magic", "version", "index", "count", "total", "size", "planes", "mark", "body", "digest")
    fields = dict(zip(names, layout.unpack_from(chunk), strict=True))
    payload = chunk[layout.size + 8 :] if payload is None else payload
    fields["digest"] = xxhash.xxh3_128_digest(payload)
    fields["body"] = xxhash.xxh3_128_digest(fields["digest"])
    header = layout.pack(*(fields | changes).values())
    return header + xxhash.xxh3_64_digest(header) + payload


def test_headers_that_lie_are_refused() -> None:
    chunk = encode_segment(_segment(), "f")[0]
    assert _same(decode_segment([_forged_chunk(chunk)], "f"), _segment())
    lies: list[dict[str, object]] = [
        {"magic": b"PK\3\4"},
        {"version": 99},
        {"index": 1},
        {"count": 2**32 - 1},
        {"total": 2**63},
        {"size": 2**63},
        {"size": 0},
        {"size": 2**63, "total": 2**63},
        {"planes": 1},
        {"planes": 255},
    ]
    for lie in lies:
        with pytest.raises(CodecError):
            decode_segment([_forged_chunk(chunk, **lie)], "f")


def _bombs() -> Iterator[tuple[bytes, int]]:
    """Payloads, and the size that the header claims for them."""
    zeros = zstandard.ZstdCompressor().compress(bytes(2**27))
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2**20))
    small = zstandard.ZstdCompressor().compress(bytes(1000))
    yield from ((zeros, size) for size in (1, 2**20, CHUNK_BYTES, 2**27, 2**63))
    yield from ((streamed, size) for size in (1, 2**20))
    yield from ((small, size) for size in (0, 999, 1001))
    yield from ((piece, 1000) for piece in (small[:-1], small[:4], small + b"\0", small + small, b"?", bytes(99)))


@pytest.mark.parametrize("planes", [1, 2, 4, 255])
def test_compressed_payloads_that_lie_are_refused_in_bounded_memory(planes: int) -> None:
    chunk = encode_segment(_segment(), "f")[0]
    for payload, size in _bombs():
        for total in {size, 1000}:
            forged = _forged_chunk(chunk, payload, planes=planes, size=size, total=total)
            tracemalloc.start()
            with pytest.raises(CodecError):
                decode_segment([forged], "f")
            assert tracemalloc.get_traced_memory()[1] < 2**20
            tracemalloc.stop()


def test_a_chunk_that_grows_takes_no_more_than_a_chunk() -> None:
    """Right in itself: zeros, where a description should be."""
    payload = zstandard.ZstdCompressor().compress(bytes(CHUNK_BYTES))
    chunk = encode_segment(_segment(), "f")[0]
    forged = _forged_chunk(chunk, payload, planes=4, size=CHUNK_BYTES, total=CHUNK_BYTES)
    tracemalloc.start()
    with pytest.raises(CodecError):
        decode_segment([forged], "f")
    assert tracemalloc.get_traced_memory()[1] < 3 * CHUNK_BYTES
    tracemalloc.stop()


def test_what_cannot_be_written_is_refused() -> None:
    keys = torch.zeros(1, 2, 4)
    positions = torch.arange(2, dtype=torch.int32)[None]
    for wrong in (keys.double(), keys.half()):
        with pytest.raises(ValueError, match="cannot be stored"):
            encode_segment(Segment(0, 2, [LayerEntries.stack(keys, wrong, positions)]), "f")
    with pytest.raises(ValueError, match="larger than a chunk's header"):
        encode_segment(_segment(), "f", 20)


def test_a_view_of_a_larger_buffer_is_written_as_it_reads() -> None:
    wide = torch.randn(2, 50, 8)[:, 10:20]
    segment = Segment(
        5, 15, [LayerEntries.stack(wide, wide[..., :3], torch.arange(5, 15, dtype=torch.int32).expand(2, -1))]
    )
    assert _same(decode_segment(encode_segment(segment, "f"), "f"), segment)
