"""The description at the beginning of a body: what the segment is, and how its tensors lie in the bytes behind it.

    length u32 | JSON, padded with spaces: start, stop, dtype, storage [format, group], layers

`layers` has [counts, head_dim, value_dim, first] for each: `counts` are the numbers of entries of the KV heads. `first`
is the first entry's position when all heads hold the same positions without gaps, which are then not stored; else -1.
Everything is checked before it is believed.
"""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kv_compression.cache import LayerEntries
from kv_compression.errors import CodecError
from kv_compression.storage import Storage

_LENGTH = struct.Struct("<I")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_ALIGNMENT = 64
_MAX_LENGTH = 2**20  # JSON takes many times its size in memory: bounded before it is parsed
_MAX_POSITION = 2**31 - 1


@dataclass(frozen=True)
class Shape:
    """A layer as the description has it."""

    counts: tuple[int, ...]
    head_dim: int
    value_dim: int
    first: int
    dtype: torch.dtype

    def like(self) -> LayerEntries:
        """Entries of this shape that take no memory: to make others from."""
        rows = sum(self.counts)
        keys = torch.empty((), dtype=self.dtype).expand(rows, self.head_dim)
        values = torch.empty((), dtype=self.dtype).expand(rows, self.value_dim)
        positions = torch.empty((), dtype=torch.int32).expand(rows)
        return LayerEntries(keys, values, positions, (0,) * len(self.counts), self.counts)


@dataclass(frozen=True)
class Description:
    """Of a segment from `start` to `stop`, with tensors of `dtype` stored as `storage` says."""

    start: int
    stop: int
    dtype: torch.dtype
    storage: Storage
    shapes: Sequence[Shape]

    @property
    def body_bytes(self) -> int:
        """Bytes of all keys, values and positions that are stored."""
        rows = self.storage.rows(self.dtype)
        keys = [(count, shape.head_dim) for shape in self.shapes for count in shape.counts]
        values = [(count, shape.value_dim) for shape in self.shapes for count in shape.counts]
        positions = sum(sum(shape.counts) for shape in self.shapes if shape.first < 0)
        return rows.nbytes(keys, keys=True) + rows.nbytes(values, keys=False) + 4 * positions

    def dump(self) -> bytes:
        """As the body begins. ValueError for a type that cannot be stored."""
        names = [name for name, dtype in _DTYPES.items() if dtype == self.dtype]
        if not names:
            raise ValueError(f"tensors of the type {self.dtype} cannot be stored")
        layers = [[shape.counts, shape.head_dim, shape.value_dim, shape.first] for shape in self.shapes]
        storage = [self.storage.format, self.storage.group]
        content = {"start": self.start, "stop": self.stop, "dtype": names[0], "storage": storage, "layers": layers}
        text = json.dumps(content).encode()
        text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNMENT)
        return _LENGTH.pack(len(text)) + text


def read_description(read: Callable[[int], bytes | bytearray]) -> tuple[Description, int]:
    """With the bytes that it took. CodecError when it makes no sense."""
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    if length > _MAX_LENGTH:
        raise CodecError("the description is too long")
    try:
        content = json.loads(read(length))
        start, stop, layers = content["start"], content["stop"], content["layers"]
        fine = type(start) is type(stop) is int and 0 <= start <= stop <= _MAX_POSITION and len(layers) > 0
        fine = fine and content["dtype"] in _DTYPES and all(map(_is_shape, layers))
        name, group = content["storage"]
        storage = Storage(name, group)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CodecError("the description cannot be read") from error
    if not fine:
        raise CodecError("the description makes no sense")
    dtype = _DTYPES[content["dtype"]]
    shapes = [Shape(tuple(counts), *dims, dtype) for counts, *dims in layers]  # type: ignore[call-arg]
    if any(shape.first + max(shape.counts) > stop + 1 for shape in shapes):
        raise CodecError("there are more entries than positions")
    return Description(start, stop, dtype, storage, shapes), _LENGTH.size + length


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
