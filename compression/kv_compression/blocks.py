"""Heads with different numbers of entries as blocks of rows: many small heads at once, large ones piece by piece."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kv_compression.scratch import Scratch


@dataclass(frozen=True)
class Span:
    """`count` entries of a head, from `first` on, which are the rows of a block from `at` to `end`; then padding."""

    head: int
    first: int
    count: int
    at: int
    end: int

    def of(self, heads: Sequence[Tensor]) -> Tensor:
        """Its entries, as a view."""
        return heads[self.head][self.first : self.first + self.count]


@dataclass(frozen=True)
class Block:
    """Some rows of [rows, dim]. Every span has a multiple of the unit, padding included."""

    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        """Padding included."""
        return self.spans[-1].end

    def direct(self, heads: Sequence[Tensor]) -> Tensor | None:
        """The rows as a view; None when they are of several heads, padded, or not in float32."""
        alone = len(self.spans) == 1 and self.spans[0].count == self.rows
        return self.spans[0].of(heads) if alone and heads[0].dtype == torch.float32 else None

    def gather(self, heads: Sequence[Tensor], scratch: Scratch) -> Tensor:
        """The rows in float32, to be read only. Padding repeats the entry before it."""
        if (rows := self.direct(heads)) is not None:
            return rows
        rows = scratch.take("rows", (self.rows, heads[0].shape[1]), torch.float32)
        for span in self.spans:
            rows[span.at : span.at + span.count].copy_(span.of(heads))
            if span.at + span.count < span.end:
                rows[span.at + span.count : span.end] = rows[span.at + span.count - 1]
        return rows

    def scatter(self, rows: Tensor, heads: Sequence[Tensor]) -> None:
        """Write the rows over their heads."""
        for span in self.spans:
            span.of(heads).copy_(rows[span.at : span.at + span.count])


def blocks(counts: Sequence[int], unit: int, size: int) -> Iterator[Block]:
    """All entries of heads with these counts, in blocks of at most `size` rows, which is a multiple of the unit."""
    spans: list[Span] = []
    at = 0
    for head, count in enumerate(counts):
        first = 0
        while first < count:
            taken = min(count - first, size - at)
            end = at + -(-taken // unit) * unit
            spans.append(Span(head, first, taken, at, end))
            first, at = first + taken, end
            if at == size:
                yield Block(tuple(spans))
                spans, at = [], 0
    if spans:
        yield Block(tuple(spans))
