"""Segments to bytes and back. The chunks are `frame.py`'s; their body is a description and the raw tensors:

    description length u32 | description (JSON, padded with spaces) | for every layer keys, values and maybe positions

The description has start, stop, dtype and per layer [kv_heads, entries, head_dim, value_dim, first]. `first` is the
first entry's position when all heads hold positions without gaps, which are then not stored; -1 when they are stored.
Numbers are little-endian. Nothing in a body names code: there is no pickle.
"""

import json
import math
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kv_compression.cache import LayerEntries
from kv_compression.errors import CodecError
from kv_compression.frame import CHUNK_BYTES, FORMAT_VERSION, pack_chunks, unpack_chunks
from kv_compression.segment import Segment

__all__ = ["CHUNK_BYTES", "FORMAT_VERSION", "decode_segment", "encode_segment"]

_LENGTH = struct.Struct("<I")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_ALIGNMENT = 64
_MAX_DESCRIPTION = 2**20  # JSON takes many times its size in memory: bounded before it is parsed
_MAX_POSITION = 2**31 - 1

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
    shapes = [
        [*layer.keys.shape, layer.values.shape[-1], first] for layer, first in zip(segment.layers, firsts, strict=True)
    ]
    text = json.dumps({"start": segment.start, "stop": segment.stop, "dtype": dtype, "layers": shapes}).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNMENT)
    head = memoryview(_LENGTH.pack(len(text)) + text)
    return pack_chunks([head, *_tensors(segment.layers, firsts)], fingerprint, chunk_bytes)


def decode_segment(chunks: Sequence[bytes], fingerprint: str) -> Segment:
    """The segment that these chunks are. Raises CodecError when anything about them is not as it was written.

    The tensors share one buffer, a copy of the chunks' payloads; no more memory than that is taken, whatever the
    chunks say of themselves.
    """
    body = unpack_chunks(chunks, fingerprint)
    description, offset = _description(body)
    start, stop, dtype = description["start"], description["stop"], _DTYPES[description["dtype"]]
    sizes = [_sizes(shape, dtype) for shape in description["layers"]]
    if offset + sum(map(sum, sizes)) != len(body):
        raise CodecError("the sizes in the description do not add up")
    layers = []
    for shape, parts in zip(description["layers"], sizes, strict=True):
        raw = [_raw(body, offset + sum(parts[:i]), size) for i, size in enumerate(parts)]
        offset += sum(parts)
        layers.append(_layer(raw, shape, dtype, start, stop))
    return Segment(start, stop, layers)


def _first(layer: LayerEntries) -> int:
    if layer.count == 0:
        return 0
    first = int(layer.positions[0, 0])
    run = torch.arange(first, first + layer.count, dtype=torch.int32)
    return first if bool((layer.positions == run).all()) else -1


def _tensors(layers: Sequence[LayerEntries], firsts: Sequence[int]) -> Iterator[memoryview]:
    for layer, first in zip(layers, firsts, strict=True):
        for tensor in (layer.keys, layer.values, layer.positions)[: 2 + (first < 0)]:
            if tensor.numel():
                raw: Any = tensor.contiguous().view(-1).view(torch.uint8).numpy()
                yield memoryview(raw)


def _description(body: bytearray) -> tuple[dict[str, Any], int]:
    """The checked description, and where the tensors begin."""
    try:
        (length,) = _LENGTH.unpack_from(body)
        if length > _MAX_DESCRIPTION:
            raise CodecError("the description is too long")
        description = json.loads(body[_LENGTH.size : _LENGTH.size + length])
        start, stop, layers = description["start"], description["stop"], description["layers"]
        fine = type(start) is type(stop) is int and 0 <= start <= stop <= _MAX_POSITION and len(layers) > 0
        fine = fine and description["dtype"] in _DTYPES and all(map(_is_shape, layers))
    except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise CodecError("the description cannot be read") from error
    if not fine:
        raise CodecError("the description makes no sense")
    return description, _LENGTH.size + length


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and len(shape) == 5
        and all(type(number) is int and number <= _MAX_POSITION for number in shape)
        and min(shape[0], shape[2], shape[3]) >= 1
        and shape[1] >= 0
        and shape[4] >= -1
    )


def _sizes(shape: Sequence[int], dtype: torch.dtype) -> list[int]:
    """Bytes of the keys, the values and the positions."""
    heads, entries, head_dim, value_dim, first = shape
    rows = heads * entries
    return [rows * head_dim * dtype.itemsize, rows * value_dim * dtype.itemsize, rows * 4 if first < 0 else 0]


def _raw(body: bytearray, offset: int, size: int) -> Tensor:
    """[size] uint8, a view of the body."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(body, dtype=torch.uint8, offset=offset, count=size)


def _layer(raw: Sequence[Tensor], shape: Sequence[int], dtype: torch.dtype, start: int, stop: int) -> LayerEntries:
    heads, entries, head_dim, value_dim, first = shape
    if first + entries > stop + 1:
        raise CodecError("there are more entries than positions")
    if first < 0:
        positions = _typed(raw[2], torch.int32, heads, entries)
    else:
        positions = torch.arange(first, first + entries, dtype=torch.int32).expand(heads, -1)
    ascending = bool((positions[:, 1:] > positions[:, :-1]).all())
    if entries and not (ascending and start <= int(positions[:, 0].min()) and int(positions[:, -1].max()) < stop):
        raise CodecError("the positions are not in order, or not in the segment's range")
    keys = _typed(raw[0], dtype, heads, entries, head_dim)
    return LayerEntries(keys, _typed(raw[1], dtype, heads, entries, value_dim), positions)


def _typed(raw: Tensor, dtype: torch.dtype, *shape: int) -> Tensor:
    """Bytes as `dtype`; copied only where they do not lie on a multiple of its size."""
    assert raw.numel() == math.prod(shape) * dtype.itemsize
    return (raw if raw.data_ptr() % dtype.itemsize == 0 else raw.clone()).view(dtype).view(shape)
