"""Segments to bytes and back. Every chunk carries its own header and digest; everything is checked before it is used.

A chunk is a fixed header, then its part of the body. The body is a JSON description and the raw little-endian tensors:

    magic 4 | version u16 | index u32 | count u32 | body bytes u64 | fingerprint xxh3_128 16 | digest xxh3_128 16
    body: description length u32 | description (JSON) | for every layer keys, values, positions

The digest is over the header before it and the chunk's part of the body.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor

from kv_compression.cache import LayerEntries
from kv_compression.errors import CodecError
from kv_compression.segment import Segment

FORMAT_VERSION = 1
CHUNK_BYTES = 4 * 2**20 - 256  # a value of exactly 2^n bytes costs a quarter more memory in some stores

_MAGIC = b"SKVC"
_HEADER = struct.Struct("<4sHIIQ16s")
_DIGEST_BYTES = 16
_OVERHEAD = _HEADER.size + _DIGEST_BYTES
_DESCRIPTION = struct.Struct("<I")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def encode_segment(segment: Segment, fingerprint: str, chunk_bytes: int = CHUNK_BYTES) -> list[bytes]:
    """Chunks of at most `chunk_bytes`. `fingerprint` is what a reader must present again."""
    body = b"".join(_body(segment))
    room = chunk_bytes - _OVERHEAD
    parts = [memoryview(body)[start : start + room] for start in range(0, len(body), room)]
    mark = _fingerprint(fingerprint)
    return [_chunk(index, len(parts), len(body), mark, part) for index, part in enumerate(parts)]


def decode_segment(chunks: Sequence[bytes], fingerprint: str) -> Segment:
    """The segment that these chunks are. Raises CodecError when anything about them is not as it was written."""
    if not chunks:
        raise CodecError("there are no chunks")
    mark = _fingerprint(fingerprint)
    size = sum(len(chunk) for chunk in chunks) - _OVERHEAD * len(chunks)
    parts = [_part(chunk, index, len(chunks), size, mark) for index, chunk in enumerate(chunks)]
    body = bytearray().join(parts)
    return _segment(body)


def _body(segment: Segment) -> Iterator[bytes | memoryview]:
    described = [_describe(layer) for layer in segment.layers]
    dtype = str(segment.layers[0].keys.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise CodecError(f"tensors of type {dtype} cannot be stored")
    text = json.dumps({"start": segment.start, "stop": segment.stop, "dtype": dtype, "layers": described}).encode()
    yield _DESCRIPTION.pack(len(text))
    yield text
    for layer in segment.layers:
        for tensor in (layer.keys, layer.values, layer.positions):
            yield memoryview(tensor.contiguous().view(torch.uint8).numpy()).cast("B")


def _describe(layer: LayerEntries) -> list[int]:
    heads, entries, head_dim = layer.keys.shape
    return [heads, entries, head_dim, layer.values.shape[-1]]


def _chunk(index: int, count: int, total: int, mark: bytes, part: memoryview) -> bytes:
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, index, count, total, mark)
    return b"".join((header, _digest(header, part), part))


def _part(chunk: bytes, index: int, count: int, size: int, mark: bytes) -> memoryview:
    """The body's part in a chunk, once its header and digest are right."""
    if len(chunk) <= _OVERHEAD:
        raise CodecError(f"chunk {index} is cut short")
    header, part = chunk[: _HEADER.size], memoryview(chunk)[_OVERHEAD:]
    magic, version, *place, written_mark = _HEADER.unpack(header)
    if (magic, version) != (_MAGIC, FORMAT_VERSION):
        raise CodecError(f"chunk {index} has another format")
    if chunk[_HEADER.size : _OVERHEAD] != _digest(header, part):
        raise CodecError(f"chunk {index} is damaged")
    if place != [index, count, size]:
        raise CodecError(f"chunk {index} of {count} is out of place")
    if written_mark != mark:
        raise CodecError(f"chunk {index} was written for another model or configuration")
    return part


@dataclass
class _Reader:
    """Tensors off a body, one after another."""

    body: bytearray
    offset: int

    def tensor(self, dtype: torch.dtype, *shape: int) -> Tensor:
        count = 1
        for length in shape:
            count *= length
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        tensor = torch.frombuffer(self.body, dtype=torch.uint8, offset=self.offset, count=count * dtype.itemsize)
        self.offset += count * dtype.itemsize
        return _aligned(tensor, dtype).view(shape)


def _aligned(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as `dtype`; copied only where they do not lie on a multiple of its size."""
    return (raw if raw.data_ptr() % dtype.itemsize == 0 else raw.clone()).view(dtype)


def _segment(body: bytearray) -> Segment:
    description, offset = _description(body)
    dtype, layers = _DTYPES[description["dtype"]], description["layers"]
    sizes = [heads * entries * ((key + value) * dtype.itemsize + 4) for heads, entries, key, value in layers]
    if offset + sum(sizes) != len(body):
        raise CodecError("the sizes in the description do not add up")
    reader = _Reader(body, offset)
    return Segment(description["start"], description["stop"], [_layer(reader, dtype, *shape) for shape in layers])


def _layer(reader: _Reader, dtype: torch.dtype, heads: int, entries: int, head_dim: int, value_dim: int) -> LayerEntries:
    keys = reader.tensor(dtype, heads, entries, head_dim)
    values = reader.tensor(dtype, heads, entries, value_dim)
    return LayerEntries(keys, values, reader.tensor(torch.int32, heads, entries))


def _description(body: bytearray) -> tuple[dict[str, Any], int]:
    """The checked description and where the tensors begin."""
    try:
        (length,) = _DESCRIPTION.unpack_from(body)
        text = bytes(body[_DESCRIPTION.size : _DESCRIPTION.size + length])
        description = json.loads(text)
        shapes_are_fine = all(
            len(shape) == 4 and all(type(n) is int and 0 <= n < 2**31 for n in shape) for shape in description["layers"]
        )
        range_is_fine = type(description["start"]) is type(description["stop"]) is int
        if not (shapes_are_fine and range_is_fine and description["layers"] and description["dtype"] in _DTYPES):
            raise CodecError("the description makes no sense")
    except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise CodecError("the description cannot be read") from error
    return description, _DESCRIPTION.size + length


def _digest(header: bytes, part: memoryview) -> bytes:
    digest = xxhash.xxh3_128(header)
    digest.update(part)
    return digest.digest()


def _fingerprint(fingerprint: str) -> bytes:
    return xxhash.xxh3_128_digest(fingerprint.encode())
