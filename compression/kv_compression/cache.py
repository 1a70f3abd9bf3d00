"""Keys and values of one layer: flat buffers in which every KV head has its own number of entries.

Shapes: keys [rows, head_dim], values [rows, value_dim], positions [rows] int32. The entries of head h are `counts[h]`
rows from row `offsets[h]` on; between the heads there may be room. Keys are stored after RoPE; `positions` are the true
positions of their tokens, ascending in every head.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

GROWTH = 1.5


@dataclass(frozen=True)
class HeadEntries:
    """The entries of one head: keys [entries, head_dim], values [entries, value_dim], positions [entries]."""

    keys: Tensor
    values: Tensor
    positions: Tensor


@dataclass(frozen=True)
class LayerEntries:
    """A view of the entries of one layer, head by head."""

    keys: Tensor
    values: Tensor
    positions: Tensor
    offsets: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def stack(cls, keys: Tensor, values: Tensor, positions: Tensor) -> "LayerEntries":
        """Of tensors with a dimension of KV heads in front."""
        heads, count = positions.shape
        flat = keys.reshape(-1, keys.shape[-1]), values.reshape(-1, values.shape[-1]), positions.reshape(-1)
        return cls(*flat, _starts((count,) * heads), (count,) * heads)

    @classmethod
    def join(cls, heads: Sequence[Sequence[HeadEntries]]) -> "LayerEntries":
        """New entries: for every head the pieces given, one after another."""
        pieces = [piece for head in heads for piece in head]
        counts = tuple(sum(len(piece.positions) for piece in head) for head in heads)
        keys, values = torch.cat([piece.keys for piece in pieces]), torch.cat([piece.values for piece in pieces])
        return cls(keys, values, torch.cat([piece.positions for piece in pieces]), _starts(counts), counts)

    @property
    def total(self) -> int:
        """Entries of all heads together."""
        return sum(self.counts)

    @property
    def dims(self) -> tuple[int, int, int]:
        """KV heads, head_dim and value_dim."""
        return len(self.counts), self.keys.shape[-1], self.values.shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of the entries' keys, values and positions."""
        _, head_dim, value_dim = self.dims
        row = head_dim * self.keys.itemsize + value_dim * self.values.itemsize + self.positions.itemsize
        return self.total * row

    def __iter__(self) -> Iterator[HeadEntries]:
        """Head by head, as views."""
        for start, count in zip(self.offsets, self.counts, strict=True):
            rows = slice(start, start + count)
            yield HeadEntries(self.keys[rows], self.values[rows], self.positions[rows])

    def dense(self) -> HeadEntries | None:
        """The same with a dimension of heads in front, as views; None when the heads hold different numbers."""
        steps = {after - before for before, after in zip(self.offsets, self.offsets[1:], strict=False)}
        if len(set(self.counts)) > 1 or len(steps) > 1:
            return None
        shape = (len(self.counts), self.counts[0], min(steps, default=0), self.offsets[0])
        return HeadEntries(_strided(self.keys, *shape), _strided(self.values, *shape), _strided(self.positions, *shape))

    def take(self, choices: Sequence[Tensor]) -> "LayerEntries":
        """The entries at the indices that are given for every head, copied."""
        rows = torch.cat([start + choice for start, choice in zip(self.offsets, choices, strict=True)])
        counts = tuple(len(choice) for choice in choices)
        return LayerEntries(self.keys[rows], self.values[rows], self.positions[rows], _starts(counts), counts)

    def slice(self, first: Sequence[int], stop: Sequence[int]) -> "LayerEntries":
        """A view of the entries from index `first[h]` to `stop[h]` of every head h."""
        offsets = tuple(start + index for start, index in zip(self.offsets, first, strict=True))
        counts = tuple(end - begin for begin, end in zip(first, stop, strict=True))
        return LayerEntries(self.keys, self.values, self.positions, offsets, counts)

    def empty(self, counts: Sequence[int] | None = None) -> "LayerEntries":
        """New entries of the same types and dimensions, as many as here or `counts`, to be written."""
        counts = self.counts if counts is None else tuple(counts)
        rows, (_, head_dim, value_dim) = sum(counts), self.dims
        keys, values = self.keys.new_empty(rows, head_dim), self.values.new_empty(rows, value_dim)
        return LayerEntries(keys, values, self.positions.new_empty(rows), _starts(counts), counts)

    def write(self, source: "LayerEntries") -> None:
        """Copy as many entries as these are over them."""
        if (here := self.dense()) is not None and (there := source.dense()) is not None:
            _copy(here, there)
            return
        for target, part in zip(self, source, strict=True):
            _copy(target, part)

    def to(self, device: torch.device, dtype: torch.dtype) -> "LayerEntries":
        """On `device` with keys and values of `dtype`: a view when it is there already, else without room between."""
        if (self.keys.device, self.keys.dtype) == (device, dtype):
            return self
        packed = LayerEntries.join([[head] for head in self])
        keys, values = packed.keys.to(device, dtype), packed.values.to(device, dtype)
        return LayerEntries(keys, values, packed.positions.to(device), packed.offsets, packed.counts)


class LayerBuffer:
    """Room for the entries of one layer. Grows by half when it is full; `reserve` makes room once instead.

    An entry that was written is never written again: views of it stay as they are whatever is appended or dropped. Only
    what `take_back` took back is overwritten.
    """

    def __init__(self) -> None:
        self._room: LayerEntries | None = None  # its counts are the room that every head has
        self._first: list[int] = []
        self._stop: list[int] = []
        self._reserved = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """Entries held by every KV head; none before the first append."""
        return tuple(stop - first for first, stop in self._limits())

    @property
    def longest(self) -> int:
        """Entries of the head that holds most."""
        return max(self.counts, default=0)

    @property
    def entries(self) -> LayerEntries | None:
        """A view of what is held; None before the first append."""
        return self._room.slice(self._first, self._stop) if self._room is not None else None

    @property
    def nbytes(self) -> int:
        """Bytes of the entries held, without the room kept free."""
        return self.entries.nbytes if self.entries is not None else 0

    def append(self, new: LayerEntries, *, room: int = 0) -> LayerEntries:
        """Copy `new` behind what is held; a view of everything. `room` as for `extend`."""
        self.extend(new, room=room).write(new)
        assert self.entries is not None
        return self.entries

    def append_tokens(self, keys: Tensor, values: Tensor, position: int) -> LayerEntries:
        """Append the tokens from `position` on: keys and values [kv_heads, tokens, dim]. A view of everything."""
        heads, tokens, _ = keys.shape
        like = LayerEntries(keys[0], values[0], _arange(position, tokens, keys.device), (0,) * heads, (tokens,) * heads)
        place = self.extend(like)
        new = HeadEntries(keys, values, like.positions.expand(heads, -1))
        if (dense := place.dense()) is not None:
            _copy(dense, new)
        else:
            _scatter(place, new)
        assert self.entries is not None
        return self.entries

    def takes(self, new: LayerEntries) -> bool:
        """Whether `new` has the heads and dimensions of what is held; an empty buffer takes any."""
        return self._room is None or self._room.dims == new.dims

    def extend(self, like: LayerEntries, *, room: int = 0) -> LayerEntries:
        """Take as many entries as `like` has, of its dimensions and types; a view of them, to be written by the caller.

        When memory has to be taken for that, then with `room` for so many more per head behind them.
        """
        place = self._make_room(like, room)
        before = list(self._stop)
        self._stop = [stop + count for stop, count in zip(before, like.counts, strict=True)]
        return place.slice(before, self._stop)

    def reserve(self, tokens: int) -> None:
        """The next append makes room for `tokens` entries per head behind those held now."""
        self._reserved = self.longest + tokens

    def drop_first(self, count: int) -> None:
        """Forget the first `count` entries of every head."""
        dropped = max(count, 0)
        self._first = [min(first + dropped, stop) for first, stop in self._limits()]

    def take_back(self, tokens: int, length: int) -> None:
        """Forget the entries of the last `tokens` tokens, which are those from position `length` on."""
        if self._room is None:
            return
        held = self._room.slice([max(first, stop - tokens) for first, stop in self._limits()], self._stop)
        taken = torch.cat([head.positions for head in held]).ge(length).tolist()  # one transfer for all heads
        for head, (start, count) in enumerate(zip(_starts(held.counts), held.counts, strict=True)):
            self._stop[head] -= sum(taken[start : start + count])

    def _limits(self) -> Iterator[tuple[int, int]]:
        return zip(self._first, self._stop, strict=True)

    def _make_room(self, new: LayerEntries, room: int) -> LayerEntries:
        heads, held = len(new.counts), self.entries
        counts, firsts = self.counts or (0,) * heads, self._first or [0] * heads
        reserved = max(self._reserved - self.longest, 0)
        wanted = [count + max(more, reserved) for count, more in zip(counts, new.counts, strict=True)]
        if self._room is not None and all(map(_fits, firsts, wanted, self._room.counts)):
            return self._room
        grown = [int(count * GROWTH) for count in counts]
        self._room = new.empty([max(want + room, growth) for want, growth in zip(wanted, grown, strict=True)])
        self._first, self._stop = [0] * heads, list(counts)
        if held is not None:
            self._room.slice(self._first, self._stop).write(held)
        return self._room


def _fits(first: int, wanted: int, room: int) -> bool:
    return first + wanted <= room


def _starts(counts: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(counts, initial=0))[:-1]


def _strided(rows: Tensor, heads: int, count: int, step: int, offset: int) -> Tensor:
    """[heads, count, …] of the flat `rows`."""
    row = rows.stride(0)
    inner, strides = rows.shape[1:], rows.stride()[1:]
    return rows.as_strided((heads, count, *inner), (step * row, row, *strides), rows.storage_offset() + offset * row)


def _arange(first: int, count: int, device: torch.device) -> Tensor:
    return torch.arange(first, first + count, dtype=torch.int32, device=device)


def _copy(target: HeadEntries, source: HeadEntries) -> None:
    target.keys.copy_(source.keys)
    target.values.copy_(source.values)
    target.positions.copy_(source.positions)


def _scatter(place: LayerEntries, new: HeadEntries) -> None:
    """Write equally many new entries of every head to their rows, in one call each for keys, values and positions."""
    tokens = new.positions.shape[1]
    rows = (torch.tensor(place.offsets)[:, None] + torch.arange(tokens)).flatten().to(place.keys.device)
    place.keys.index_copy_(0, rows, new.keys.reshape(-1, new.keys.shape[-1]))
    place.values.index_copy_(0, rows, new.values.reshape(-1, new.values.shape[-1]))
    place.positions.index_copy_(0, rows, new.positions.reshape(-1))
