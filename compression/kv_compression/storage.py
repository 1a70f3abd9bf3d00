"""How the keys or the values of many heads lie in a body of bytes, in each of the formats.

- raw: the entries of head after head, as they are in memory
- bfloat16: the same in 16 bits
- fp8, int8, int4 (`quantize.py`): block after block of entries, each the scales, the zero points if there are any, and
  the codes. A block has as many whole groups of entries as fit into BLOCK numbers; heads follow one another in it

The groups of keys begin anew with every head, and the last one is smaller. Two codes of 4 bits in a byte are of
neighbouring entries: of one head for keys, of the block for values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from kv_compression.blocks import Block, blocks
from kv_compression.quantize import Floats8, Grouping, Integers, Quantizer
from kv_compression.scratch import Scratch

QUANTIZERS: dict[str, Quantizer] = {"fp8": Floats8(), "int8": Integers(8), "int4": Integers(4)}
FORMATS = ("raw", "bfloat16", *QUANTIZERS)
MAX_GROUP = 4096
BLOCK = 2**20  # numbers that are worked on at once: few enough for the processor's cache, and part of the format

Size = tuple[int, int]  # entries and channels of a head
ReadInto = Callable[[memoryview], None]


@dataclass(frozen=True)
class Storage:
    """The form in which `encode_segment` stores keys and values. ValueError for one that there is not.

    format: raw (nothing is lost), bfloat16, fp8, int8 or int4. group: how many numbers share a scale, even.
    compress: compress the bytes as well, without loss (zstd).
    """

    format: str = "raw"
    group: int = 64
    compress: bool = False

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"there is no format {self.format!r}: it must be one of {', '.join(FORMATS)}")
        if type(self.group) is not int or self.group % 2 or not 2 <= self.group <= MAX_GROUP:
            raise ValueError(f"group must be an even number from 2 to {MAX_GROUP}, not {self.group!r}")

    def rows(self, dtype: torch.dtype) -> "Plain | Quantized":
        """What writes and reads tensors of this type. Those of 16 bits stay as they are in `bfloat16`."""
        if self.format in QUANTIZERS:
            return Quantized(QUANTIZERS[self.format], self.group, dtype)
        return Plain(torch.bfloat16 if self.format == "bfloat16" and dtype.itemsize > 2 else dtype, dtype)


class Plain:
    """Numbers one by one."""

    def __init__(self, stored: torch.dtype, dtype: torch.dtype) -> None:
        self.width = stored.itemsize  # bytes of the numbers that the body consists of
        self._stored = stored
        self._in_place = stored == dtype
        self._scratch = Scratch()

    def nbytes(self, sizes: Sequence[Size], *, keys: bool) -> int:
        """Bytes of heads with so many entries and channels."""
        return sum(count * dim for count, dim in sizes) * self.width

    def write(self, heads: Sequence[Tensor], *, keys: bool) -> Iterator[memoryview]:
        """The bytes of heads [entries, dim]."""
        yield from (as_bytes(head.to(self._stored)) for head in heads)

    def read(self, read_into: ReadInto, heads: Sequence[Tensor], *, keys: bool) -> None:
        """Fill heads [entries, dim] with the bytes that `read_into` gives."""
        if self._in_place:
            for head in heads:
                read_into(as_bytes(head))
            return
        for head in heads:
            for part in head.split(_block_rows(head.shape[1], 1)):
                stored = self._scratch.take("stored", part.shape, self._stored)
                read_into(as_bytes(stored))
                part.copy_(stored)


class Quantized:
    """Numbers in groups. Heads of one width are worked on together, in blocks, whatever layers they are of."""

    width = 1

    def __init__(self, quantizer: Quantizer, group: int, dtype: torch.dtype) -> None:
        self._quantizer = quantizer
        self._group = group
        self._largest = torch.finfo(dtype).max
        self._scratch = Scratch()

    def nbytes(self, sizes: Sequence[Size], *, keys: bool) -> int:
        """Bytes of heads with so many entries and channels."""
        total = 0
        for dim, run in groupby(sizes, key=itemgetter(1)):
            counts = [count for count, _ in run]
            grouping = self._grouping(counts, keys)
            per_head = counts if keys else [sum(counts)]
            groups = sum(-(-count // grouping.unit) for count in per_head) * grouping.per_unit(dim)
            total += groups * self._quantizer.stats * 2 + sum(map(self._quantizer.code_rows, per_head)) * dim
        return total

    def write(self, heads: Sequence[Tensor], *, keys: bool) -> Iterator[memoryview]:
        """The bytes of heads [entries, dim]. ValueError for numbers that cannot be quantized."""
        for of_width, grouping, block in self._blocks(heads, keys):
            rows = block.gather(of_width, self._scratch)
            stats, codes = self._quantizer.encode(rows, self._largest, grouping, self._scratch)
            yield from map(as_bytes, [*stats, *self._pieces(block, codes, keys)])

    def read(self, read_into: ReadInto, heads: Sequence[Tensor], *, keys: bool) -> None:
        """Fill heads [entries, dim] with the bytes that `read_into` gives. Needs memory for a block or two."""
        for of_width, grouping, block in self._blocks(heads, keys):
            dim, units = of_width[0].shape[1], block.rows // grouping.unit
            names = ("scale", "zero")[: self._quantizer.stats]
            stats = [self._scratch.take(name, (units, grouping.per_unit(dim)), torch.bfloat16) for name in names]
            codes = self._scratch.take("stored", (self._quantizer.code_rows(block.rows), dim), torch.uint8)
            for part in [*stats, *self._pieces(block, codes, keys)]:
                read_into(as_bytes(part))
            rows = block.direct(of_width)
            target = rows if rows is not None else self._scratch.take("rows", (block.rows, dim), torch.float32)
            self._quantizer.decode(stats, codes, target, grouping, self._scratch)
            if rows is None:
                block.scatter(target, of_width)

    def _grouping(self, counts: Sequence[int], keys: bool) -> Grouping:
        """Groups of keys are no larger than the longest head, so that there is little padding."""
        longest = max(counts)
        return Grouping(min(self._group, max(longest + longest % 2, 2)) if keys else self._group, keys)

    def _blocks(self, heads: Sequence[Tensor], keys: bool) -> Iterator[tuple[list[Tensor], Grouping, Block]]:
        """Every block with the heads that its spans are of."""
        for dim, run in groupby(heads, key=lambda head: head.shape[1]):
            of_width = list(run)
            counts = [len(head) for head in of_width]
            grouping = self._grouping(counts, keys)
            for block in blocks(counts, grouping.unit, _block_rows(dim, grouping.size)):
                yield of_width, grouping, block

    def _pieces(self, block: Block, codes: Tensor, keys: bool) -> list[Tensor]:
        """What is stored of the codes of a block: not those of padding, which values have none of."""
        if not keys:
            return [codes]
        code_rows = self._quantizer.code_rows
        return [codes[code_rows(span.at) : code_rows(span.at + span.count)] for span in block.spans]


def as_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor without gaps, as they lie in memory."""
    raw: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(raw)


def _block_rows(dim: int, unit: int) -> int:
    return max(BLOCK // (dim * unit), 1) * unit
