"""Segments to bytes and back. The chunks are `frame.py`'s; their body is a description and the raw tensors:

    description length u32 | description (JSON, padded with spaces) | for every layer keys, values and maybe positions

The description has start, stop, dtype and per layer [counts, head_dim, value_dim, first]: `counts` are the numbers of
entries of the KV heads, whose rows follow one another. `first` is the first entry's position when all heads hold the
same positions without gaps, which are then not stored; -1 when they are stored.
Numbers are little-endian. Nothing in a body names code: there is no pickle.
"""

import json
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kv_compression.cache import LayerEntries
from kv_compression.errors import CodecError
from kv_compression.frame import CHUNK_BYTES, FORMAT_VERSION, Chunk, ChunkReader, pack_chunks
from kv_compression.segment import Segment

__all__ = ["CHUNK_BYTES", "FORMAT_VERSION", "Shape", "decode_segment", "encode_segment", "read_segment"]

_LENGTH = struct.Struct("<I")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_ALIGNMENT = 64
_MAX_DESCRIPTION = 2**20  # JSON takes many times its size in memory: bounded before it is parsed
_MAX_POSITION = 2**31 - 1


@dataclass(frozen=True)
class Shape:
    """A layer as the description has it."""

    counts: tuple[int, ...]
    head_dim: int
    value_dim: int
    first: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes in the body: keys, values, and the positions if they are stored."""
        row = (self.head_dim + self.value_dim) * self.dtype.itemsize + (4 if self.first < 0 else 0)
        return sum(self.counts) * row

    def like(self) -> LayerEntries:
        """Entries of this shape that take no memory: to make others from."""
        rows = sum(self.counts)
        keys = torch.empty((), dtype=self.dtype).expand(rows, self.head_dim)
        values = torch.empty((), dtype=self.dtype).expand(rows, self.value_dim)
        positions = torch.empty((), dtype=torch.int32).expand(rows)
        return LayerEntries(keys, values, positions, (0,) * len(self.counts), self.counts)


Allocate = Callable[[Sequence[Shape], int, int], list[LayerEntries]]

assert sys.byteorder == "little"  # the tensors are stored as they lie in memory


def encode_segment(segment: Segment, fingerprint: str, chunk_bytes: int = CHUNK_BYTES) -> list[bytes]:
    """Chunks of at most `chunk_bytes`, headers included. A reader must present the same `fingerprint`.

    ValueError for tensors that are not all of one type out of bfloat16, float16 and float32.
    """
    dtypes = {tensor.dtype for layer in segment.layers for tensor in (layer.keys, layer.values)}
    dtype = str(min(dtypes, key=str)).removeprefix("torch.")
    if len(dtypes) != 1 or dtype not in _DTYPES:
        raise ValueError(f"tensors of the types {dtypes} cannot be stored")
    firsts = [_first(layer) for layer in segment.layers]
    shapes = [[layer.counts, *layer.dims[1:], first] for layer, first in zip(segment.layers, firsts, strict=True)]
    text = json.dumps({"start": segment.start, "stop": segment.stop, "dtype": dtype, "layers": shapes}).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNMENT)
    head = memoryview(_LENGTH.pack(len(text)) + text)
    return pack_chunks([head, *_tensors(segment.layers, firsts)], fingerprint, chunk_bytes)


def decode_segment(chunks: Sequence[Chunk], fingerprint: str) -> Segment:
    """The segment that these chunks are. Raises CodecError when anything about them is not as it was written.

    No more memory is taken than the chunks have bytes (and positions that were not stored), whatever they say.
    """
    size = sum(len(chunk) for chunk in chunks)

    def allocate(shapes: Sequence[Shape], start: int, stop: int) -> list[LayerEntries]:
        if sum(shape.nbytes for shape in shapes) > size:
            raise CodecError("the description speaks of more than there is")
        return [shape.like().empty() for shape in shapes]

    return read_segment(chunks, fingerprint, allocate)


def read_segment(chunks: Iterable[Chunk], fingerprint: str, allocate: Allocate) -> Segment:
    """Read chunks as they come into the entries that `allocate` makes room for, on the CPU.

    `allocate` is given the shapes of the layers and the segment's start and stop, and refuses what it does not expect.
    Raises CodecError; what was written into the entries is then worth nothing.
    """
    reader = ChunkReader(chunks, fingerprint)
    start, stop, shapes, length = _description(reader)
    if length + sum(shape.nbytes for shape in shapes) != reader.total:
        raise CodecError("the sizes in the description do not add up")
    layers = allocate(shapes, start, stop)
    for shape, layer in zip(shapes, layers, strict=True):
        _fill(reader, shape, layer)
        _check_positions(layer, start, stop)
    reader.finish()
    return Segment(start, stop, layers)


def _first(layer: LayerEntries) -> int:
    count = layer.counts[0]
    if layer.total == 0:
        return 0
    positions = [head.positions for head in layer]
    first = int(positions[0][0]) if count else 0
    run = torch.arange(first, first + count, dtype=torch.int32)
    return first if all(torch.equal(head, run) for head in positions) else -1


def _tensors(layers: Sequence[LayerEntries], firsts: Sequence[int]) -> Iterator[memoryview]:
    for layer, first in zip(layers, firsts, strict=True):
        yield from (_bytes(head.keys) for head in layer)
        yield from (_bytes(head.values) for head in layer)
        if first < 0:
            yield from (_bytes(head.positions) for head in layer)


def _description(reader: ChunkReader) -> tuple[int, int, list[Shape], int]:
    """Start and stop, the layers' shapes, and the bytes that the description took; all of it checked."""
    try:
        (length,) = _LENGTH.unpack(_read(reader, _LENGTH.size))
        if length > _MAX_DESCRIPTION:
            raise CodecError("the description is too long")
        description = json.loads(_read(reader, length))
        start, stop, layers = description["start"], description["stop"], description["layers"]
        fine = type(start) is type(stop) is int and 0 <= start <= stop <= _MAX_POSITION and len(layers) > 0
        fine = fine and description["dtype"] in _DTYPES and all(map(_is_shape, layers))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CodecError("the description cannot be read") from error
    if not fine:
        raise CodecError("the description makes no sense")
    dtype = _DTYPES[description["dtype"]]
    shapes = [Shape(tuple(counts), *dims, dtype) for counts, *dims in layers]  # type: ignore[call-arg]
    if any(shape.first + max(shape.counts) > stop + 1 for shape in shapes):
        raise CodecError("there are more entries than positions")
    return start, stop, shapes, _LENGTH.size + length


def _read(reader: ChunkReader, size: int) -> bytearray:
    target = bytearray(size)
    reader.read_into(memoryview(target))
    return target


def _is_shape(shape: Any) -> bool:
    if not (isinstance(shape, list) and len(shape) == 4 and isinstance(shape[0], list) and shape[0]):
        return False
    counts, head_dim, value_dim, first = shape
    numbers = [*counts, head_dim, value_dim, first]
    return (
        all(type(number) is int and number <= _MAX_POSITION for number in numbers)
        and min(counts) >= 0
        and min(head_dim, value_dim) >= 1
        and first >= -1
        and (first < 0 or len(set(counts)) == 1)
    )


def _fill(reader: ChunkReader, shape: Shape, layer: LayerEntries) -> None:
    """Head by head: the entries of one head lie together, whatever room there is behind them."""
    for head in layer:
        reader.read_into(_bytes(head.keys))
    for head in layer:
        reader.read_into(_bytes(head.values))
    for head in layer:
        if shape.first < 0:
            reader.read_into(_bytes(head.positions))
        else:
            stop = shape.first + len(head.positions)
            head.positions.copy_(torch.arange(shape.first, stop, dtype=torch.int32))


def _bytes(tensor: Tensor) -> memoryview:
    """A tensor without gaps, as its bytes."""
    raw: Any = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
    return memoryview(raw)


def _check_positions(layer: LayerEntries, start: int, stop: int) -> None:
    for positions in (head.positions for head in layer):
        if not len(positions):
            continue
        ascending = bool((positions[1:] > positions[:-1]).all())
        if not (ascending and start <= int(positions[0]) and int(positions[-1]) < stop):
            raise CodecError("the positions are not in order, or not in the segment's range")
