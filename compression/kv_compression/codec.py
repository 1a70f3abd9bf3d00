"""Segments to bytes and back: `frame.py`'s chunks of a body, which is a description and tensors.

    description (`description.py`) | keys of all layers | values of all layers (`storage.py`) | positions

The positions are those that the description does not give, head after head, 32 bits each. Numbers are little-endian.
Nothing in a body names code: there is no pickle.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor

from kv_compression.cache import LayerEntries
from kv_compression.description import Description, Shape, read_description
from kv_compression.errors import CodecError
from kv_compression.frame import CHUNK_BYTES, FORMAT_VERSION, Chunk, ChunkReader, check_sizes, pack_chunks
from kv_compression.segment import Segment
from kv_compression.storage import Storage, as_bytes

__all__ = ["CHUNK_BYTES", "FORMAT_VERSION", "Shape", "Storage", "decode_segment", "encode_segment", "read_segment"]

Allocate = Callable[[Sequence[Shape], int, int], list[LayerEntries]]

assert sys.byteorder == "little"  # the tensors are stored as they lie in memory

_AS_IT_IS = Storage()


def encode_segment(
    segment: Segment, fingerprint: str, chunk_bytes: int = CHUNK_BYTES, *, storage: Storage = _AS_IT_IS
) -> list[bytes]:
    """Chunks of at most `chunk_bytes`, headers included. A reader must present the same `fingerprint`.

    ValueError for tensors that are not all of one type out of bfloat16, float16 and float32, and for numbers that
    cannot be quantized when `storage` asks for it: those that are not finite, or near the end of their type.
    """
    dtypes = {tensor.dtype for layer in segment.layers for tensor in (layer.keys, layer.values)}
    if len(dtypes) != 1:
        raise ValueError(f"tensors of the types {dtypes} cannot be stored")
    dtype = dtypes.pop()
    shapes = [Shape(layer.counts, *layer.dims[1:], _first(layer), dtype) for layer in segment.layers]
    head = Description(segment.start, segment.stop, dtype, storage, shapes).dump()
    rows = storage.rows(dtype)
    heads = [each for layer in segment.layers for each in layer]
    keys, values = [each.keys for each in heads], [each.values for each in heads]
    positions = [
        as_bytes(each.positions)
        for layer, shape in zip(segment.layers, shapes, strict=True)
        for each in layer
        if shape.first < 0
    ]
    body = chain([memoryview(head)], rows.write(keys, keys=True), rows.write(values, keys=False), positions)
    return pack_chunks(body, fingerprint, chunk_bytes, planes=rows.width if storage.compress else 0)


def decode_segment(chunks: Sequence[Chunk], fingerprint: str) -> Segment:
    """The segment that these chunks are, its tensors of the type that they had before they were stored.

    Raises CodecError when anything about the chunks is not as it was written. The memory taken is bounded by what they
    hold, whatever they say: by their bytes, or CHUNK_BYTES for one that is compressed, and by what becomes of these
    bytes when they are not quantized (and of positions that were not stored).
    """
    check_sizes(chunks)
    return read_segment(chunks, fingerprint, lambda shapes, start, stop: [shape.like().empty() for shape in shapes])


def read_segment(chunks: Iterable[Chunk], fingerprint: str, allocate: Allocate) -> Segment:
    """Read chunks as they come into the entries that `allocate` makes room for, on the CPU.

    `allocate` is given the shapes of the layers and the segment's start and stop, and refuses what it does not expect.
    Raises CodecError; what was written into the entries is then worth nothing.
    """
    reader = ChunkReader(chunks, fingerprint)
    described, length = read_description(reader.read)
    if length + described.body_bytes != reader.total:
        raise CodecError("the sizes in the description do not add up")
    layers = allocate(described.shapes, described.start, described.stop)
    heads = [list(layer) for layer in layers]
    rows = described.storage.rows(described.dtype)
    rows.read(reader.read_into, [each.keys for layer in heads for each in layer], keys=True)
    rows.read(reader.read_into, [each.values for layer in heads for each in layer], keys=False)
    for shape, layer in zip(described.shapes, heads, strict=True):
        _read_positions(reader, shape.first, [each.positions for each in layer], described)
    reader.finish()
    return Segment(described.start, described.stop, layers)


def _first(layer: LayerEntries) -> int:
    count = layer.counts[0]
    if layer.total == 0:
        return 0
    positions = [head.positions for head in layer]
    first = int(positions[0][0]) if count else 0
    run = torch.arange(first, first + count, dtype=torch.int32)
    return first if all(torch.equal(head, run) for head in positions) else -1


def _read_positions(reader: ChunkReader, first: int, heads: Sequence[Tensor], described: Description) -> None:
    """Those of every head of a layer: from `first` on, or from the bytes."""
    for positions in heads:
        if first < 0:
            reader.read_into(as_bytes(positions))
        else:
            torch.arange(first, first + len(positions), out=positions)
        if not len(positions):
            continue
        ascending = first >= 0 or bool((positions[1:] > positions[:-1]).all())
        if not (ascending and described.start <= int(positions[0]) and int(positions[-1]) < described.stop):
            raise CodecError("the positions are not in order, or not in the segment's range")
