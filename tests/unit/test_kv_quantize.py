"""Quantized storage: how far off a number may be, what the bytes mean, and what cannot be quantized."""

import json
import struct
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kv_compression import LayerEntries, Segment, Storage, decode_segment, encode_segment
from kv_compression.cache import HeadEntries

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
OVERHEAD = struct.calcsize("<4sHIIQQB16s16s16s") + 8


def _layer(keys: Sequence[Tensor], values: Sequence[Tensor]) -> LayerEntries:
    """Of heads [entries, dim], with room between them that must not be read."""
    counts = tuple(len(head) for head in keys)
    offsets = tuple(sum(counts[:head]) + 3 * head for head in range(len(counts)))
    rows = sum(counts) + 3 * len(counts)
    flat = [torch.full((rows, heads[0].shape[1]), torch.nan, dtype=heads[0].dtype) for heads in (keys, values)]
    positions = torch.full((rows,), -1, dtype=torch.int32)
    for head, (start, count) in enumerate(zip(offsets, counts, strict=True)):
        flat[0][start : start + count], flat[1][start : start + count] = keys[head], values[head]
        positions[start : start + count] = torch.arange(count)
    return LayerEntries(flat[0], flat[1], positions, offsets, counts)


def _segment(keys: Sequence[Tensor], values: Sequence[Tensor]) -> Segment:
    return Segment(0, max(map(len, keys)), [_layer(keys, values)])


def _stored(segment: Segment, storage: Storage, chunk_bytes: int = 2**22) -> Segment:
    return decode_segment(encode_segment(segment, "f", chunk_bytes, storage=storage), "f")


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """Heads of different lengths, some empty; channels and tokens of very different sizes, some of them constant."""
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        counts = draw(st.lists(st.sampled_from([0, 1, 2, 7, 64, 65, 130]), min_size=1, max_size=4))
        dims = [draw(st.sampled_from([1, 3, 8, 64, 96])) for _ in range(2)]
        layers.append(_layer(*([_random(draw, count, dim, generator).to(dtype) for count in counts] for dim in dims)))
    return Segment(0, 130, layers)


def _random(draw: st.DrawFn, count: int, dim: int, generator: torch.Generator) -> Tensor:
    """Numbers around a centre of each channel; from far smaller than the centre to far larger."""
    centre = 50 * torch.randn(1, dim, generator=generator)
    spread = draw(st.sampled_from([0, 1e-7, 1e-4, 1.0, 30.0]))
    sizes = 2.0 ** torch.randint(-6, 6, (1, dim), generator=generator)
    return centre + spread * sizes * torch.randn(count, dim, generator=generator)


def _heads(segment: Segment) -> list[HeadEntries]:
    return [head for layer in segment.layers for head in layer]


def _groups(head: Tensor, size: int, *, keys: bool) -> list[Tensor]:
    """The groups as the paper has them: of a key's channel over entries, of a value's entry over channels."""
    if keys:
        return [column for part in head.split(size) if len(part) for column in part.T]
    size = size if head.shape[1] % size == 0 else head.shape[1]
    return [part for row in head for part in row.split(size)]


def _allowed(group: Tensor, storage: Storage) -> Tensor:
    """How far off a group's numbers may be: half a step, and the rounding of their type.

    Scale and zero point have 8 bits and are rounded outwards; steps are not finer than 2**-18 of the zero point.
    """
    numbers, rounding = group.double(), torch.finfo(group.dtype).eps * group.double().abs().max()
    if storage.format == "fp8":
        step = numbers.abs().max() / 448 * (1 + 2**-7)
        return (numbers.abs() * 2**-4).maximum(step * 2**-10) * 1.001 + rounding
    levels = {"int8": 255, "int4": 15}[storage.format]
    low, high = numbers.min(), numbers.max()
    step = ((high - low + low.abs() * 2**-7) / levels).maximum(low.abs() * 2**-18) * (1 + 2**-6)
    return (step / 2 * 1.01 + rounding).expand(len(numbers))


@settings(deadline=None, max_examples=30)
@given(
    segment=segments(),
    name=st.sampled_from(["fp8", "int8", "int4"]),
    group=st.sampled_from([2, 32, 64]),
    compress=st.booleans(),
    chunk_bytes=st.integers(150, 9000),
)
def test_no_number_is_off_by_more_than_half_a_step(
    segment: Segment, name: str, group: int, compress: bool, chunk_bytes: int
) -> None:
    storage = Storage(name, group, compress)
    decoded = _stored(segment, storage, chunk_bytes)
    assert (decoded.start, decoded.stop) == (segment.start, segment.stop)
    heads = zip(_heads(segment), _heads(decoded), strict=True)
    for before, after in heads:
        assert torch.equal(before.positions, after.positions)
        for old, new, keys in ((before.keys, after.keys, True), (before.values, after.values, False)):
            assert (old.dtype, old.shape) == (new.dtype, new.shape)
            pairs = zip(_groups(old, group, keys=keys), _groups(new, group, keys=keys), strict=True)
            assert all((abs(a.double() - b.double()) <= _allowed(a, storage)).all() for a, b in pairs)


def _floats(numbers: bytes) -> list[float]:
    """bfloat16, by Python alone: the upper half of a float32."""
    return [struct.unpack("<f", b"\0\0" + numbers[at : at + 2])[0] for at in range(0, len(numbers), 2)]


def _body(segment: Segment, storage: Storage) -> tuple[dict[str, object], bytes]:
    (chunk,) = encode_segment(segment, "f", storage=storage)
    body = chunk[OVERHEAD:]
    (length,) = struct.unpack_from("<I", body)
    return json.loads(body[4 : 4 + length]), body[4 + length :]


@pytest.mark.parametrize("bits", [8, 4])
def test_the_bytes_mean_what_the_documentation_says(bits: int) -> None:
    """Read once more by plain Python: scales of all heads, zero points of all heads, codes."""
    counts, dim, size = (5, 0, 3), 4, 2
    keys = [torch.randn(count, dim) for count in counts]
    values = [torch.randn(count, dim) for count in counts]
    segment = _segment(keys, values)
    described, body = _body(segment, Storage(f"int{bits}", size))
    assert described["storage"] == [f"int{bits}", size]
    assert described["dtype"] == "float32"

    def taken(size: int) -> bytes:
        nonlocal body
        piece, body = body[:size], body[size:]
        return piece

    def rows(count: int) -> list[list[int]]:
        packed = taken((count if bits == 8 else (count + 1) // 2) * dim)
        lines = [list(packed[at : at + dim]) for at in range(0, len(packed), dim)]
        if bits == 4:
            lines = [line for both in lines for line in ([code & 15 for code in both], [code >> 4 for code in both])]
        return lines[:count]

    decoded = _stored(segment, Storage(f"int{bits}", size)).layers[0]
    groups = [(count + 1) // 2 for count in counts]
    scales, zeros = (_floats(taken(2 * sum(groups) * dim)) for _ in range(2))
    for head, entries in enumerate(decoded):
        first = sum(groups[:head])
        for row, codes in enumerate(rows(counts[head])):
            at = (first + row // size) * dim
            expected = [zeros[at + channel] + codes[channel] * scales[at + channel] for channel in range(dim)]
            torch.testing.assert_close(entries.keys[row], torch.tensor(expected))
    scales, zeros = (_floats(taken(2 * sum(counts) * dim // size)) for _ in range(2))
    lines = rows(sum(counts))
    flat = torch.cat([entries.values for entries in decoded])
    for row, codes in enumerate(lines):
        at = row * dim // size
        expected = [zeros[at + channel // 2] + codes[channel] * scales[at + channel // 2] for channel in range(dim)]
        torch.testing.assert_close(flat[row], torch.tensor(expected))
    assert body == struct.pack("<8i", *range(5), *range(3))


@pytest.mark.parametrize("name", ["fp8", "int8", "int4"])
def test_zeros_and_constants_come_back(name: str) -> None:
    for number in (0.0, 3.0, -1.5, 2**-100):
        rows = torch.full((70, 8), number)
        entries = _stored(_segment([rows], [rows]), Storage(name)).layers[0]
        assert torch.equal(entries.keys, rows) or name == "fp8"
        torch.testing.assert_close(entries.keys, rows, rtol=2**-4, atol=0)
        assert torch.equal(entries.keys, entries.values)


def test_an_outlier_harms_its_own_channel_of_keys_and_its_own_token_of_values() -> None:
    rows = torch.rand(64, 64)
    rows[10, 5] = 1000.0
    entries = _stored(_segment([rows], [rows]), Storage("int4")).layers[0]
    off = abs(entries.keys - rows) > 0.04
    assert off[:, 5].any()
    assert not off[:, torch.arange(64) != 5].any()
    off = abs(entries.values - rows) > 0.04
    assert off[10].any()
    assert not off[torch.arange(64) != 10].any()


@pytest.mark.parametrize("name", ["fp8", "int8", "int4"])
@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        (torch.float32, torch.nan),
        (torch.float32, torch.inf),
        (torch.bfloat16, -torch.inf),
        (torch.float32, 3e38),
        (torch.float32, -3e38),
        (torch.float16, 65504.0),
    ],
)
def test_what_cannot_be_quantized_is_refused_and_can_be_stored_as_it_is(
    name: str, dtype: torch.dtype, number: float
) -> None:
    rows = torch.ones(70, 8, dtype=dtype)
    rows[69, 3] = number
    for keys, values in ((rows, torch.ones_like(rows)), (torch.ones_like(rows), rows)):
        segment = _segment([keys], [values])
        with pytest.raises(ValueError, match="cannot be quantized"):
            encode_segment(segment, "f", storage=Storage(name))
        head = next(iter(_stored(segment, Storage("raw")).layers[0]))
        assert torch.equal(head.keys.nan_to_num(7.0), keys.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bfloat16_is_float32_rounded_and_leaves_16_bits_alone(dtype: torch.dtype) -> None:
    rows = torch.randn(20, 8).to(dtype)
    rows[0, :3] = torch.tensor([torch.nan, torch.inf, 60000.0])
    entries = _stored(_segment([rows, rows[:0]], [rows, rows[:0]]), Storage("bfloat16")).layers[0]
    expected = rows.bfloat16().to(dtype) if dtype == torch.float32 else rows
    for got in (entries.keys, entries.values):
        assert got.dtype == dtype
        assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("name", ["fp8", "int8", "int4"])
def test_a_head_of_keys_is_the_same_alone_and_among_others(name: str) -> None:
    """Small heads are worked on together, large ones piece by piece; nothing of that shows."""
    generator = torch.Generator().manual_seed(1)
    heads = [torch.randn(count, 64, generator=generator) for count in (3, 40_000, 0, 129, 20_001, 1)]
    together = _stored(_segment(heads, heads), Storage(name)).layers[0]
    for head, entries in zip(heads, together, strict=True):
        if len(head) >= 64:
            alone = _stored(_segment([head], [head]), Storage(name)).layers[0]
            assert torch.equal(entries.keys, alone.keys)
            assert torch.equal(entries.values, alone.values)


def test_bytes_per_entry() -> None:
    """Of a head with 64 channels: keys, values, and the scales and zero points of both."""
    rows = torch.randn(6400, 64)
    segment = _segment([rows], [rows])
    sizes = {
        name: sum(map(len, encode_segment(segment, "f", storage=Storage(name)))) // 6400
        for name in ("raw", "bfloat16", "fp8", "int8", "int4")
    }
    assert sizes == {"raw": 512, "bfloat16": 256, "fp8": 132, "int8": 136, "int4": 72}


def test_a_short_segment_is_not_padded() -> None:
    rows = torch.randn(2, 64)
    (chunk,) = encode_segment(_segment([rows], [rows]), "f", storage=Storage("int4", 4096))
    assert len(chunk) < 64 * 5 + 2 * 64 * 5 + 400


@pytest.mark.parametrize(
    "wrong", [("int5",), ("",), ("int4", 63), ("int4", 0), ("int4", -2), ("int4", 5000), ("int4", 64.0)]
)
def test_a_storage_that_there_is_not_is_refused(wrong: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="format|group"):
        Storage(*wrong)  # type: ignore[arg-type]
