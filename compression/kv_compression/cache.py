"""Keys and values of one layer: preallocated buffers in which entries are appended and from which they are chosen.

Shapes: keys [kv_heads, entries, head_dim], values [kv_heads, entries, value_dim], positions [kv_heads, entries] int32.
Keys are stored after RoPE; `positions` are the true positions of their tokens, ascending in every head.
"""

from dataclasses import dataclass

from torch import Tensor

GROWTH = 1.5


@dataclass(frozen=True)
class LayerEntries:
    """A view of the entries of one layer."""

    keys: Tensor
    values: Tensor
    positions: Tensor

    @property
    def count(self) -> int:
        """Entries per KV head."""
        return self.positions.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and positions."""
        return self.keys.nbytes + self.values.nbytes + self.positions.nbytes

    def take(self, indices: Tensor) -> "LayerEntries":
        """The entries at `indices` [kv_heads, kept], one choice per KV head, copied."""
        keys = self.keys.gather(1, indices[..., None].expand(-1, -1, self.keys.shape[-1]))
        values = self.values.gather(1, indices[..., None].expand(-1, -1, self.values.shape[-1]))
        return LayerEntries(keys, values, self.positions.gather(1, indices))

    def empty(self) -> "LayerEntries":
        """New entries of the same shapes and types, to be written."""
        return _empty(self, self.count)

    def slice(self, start: int, stop: int) -> "LayerEntries":
        """A view of the entries from index `start` to `stop` of every head."""
        return LayerEntries(self.keys[:, start:stop], self.values[:, start:stop], self.positions[:, start:stop])


class LayerBuffer:
    """Room for the entries of one layer. Grows by half when it is full; `reserve` makes room once instead.

    An entry that was written is never written again: views of it stay as they are whatever is appended or dropped.
    """

    def __init__(self) -> None:
        self._room: LayerEntries | None = None
        self._begin = self._end = 0
        self._reserved = 0

    @property
    def count(self) -> int:
        """Entries held per KV head."""
        return self._end - self._begin

    @property
    def entries(self) -> LayerEntries | None:
        """A view of what is held; None before the first append."""
        return self._room.slice(self._begin, self._end) if self._room is not None else None

    @property
    def nbytes(self) -> int:
        """Bytes of the entries held, without the room kept free."""
        return self.entries.nbytes if self.entries is not None else 0

    def append(self, new: LayerEntries) -> LayerEntries:
        """Copy `new` behind what is held; a view of everything."""
        for buffer, part in zip(_tensors(self.extend(new)), _tensors(new), strict=True):
            buffer.copy_(part)
        assert self._room is not None
        return self._room.slice(self._begin, self._end)

    def takes(self, new: LayerEntries) -> bool:
        """Whether `new` has the heads and dimensions of what is held; an empty buffer takes any."""
        if self._room is None:
            return True
        pairs = zip(_tensors(self._room), _tensors(new), strict=True)
        return all(held.shape[::2] == other.shape[::2] for held, other in pairs)

    def extend(self, like: LayerEntries) -> LayerEntries:
        """Take as many entries as `like` has, of its shapes and types; a view of them, to be written by the caller."""
        room = self._make_room(like)
        self._end += like.count
        return room.slice(self._end - like.count, self._end)

    def reserve(self, tokens: int) -> None:
        """The next append makes room for `tokens` entries behind those held now."""
        self._reserved = self.count + tokens

    def drop_first(self, count: int) -> None:
        """Forget the first `count` entries."""
        self._begin += min(max(count, 0), self.count)

    def _make_room(self, new: LayerEntries) -> LayerEntries:
        held, needed = self.entries, self.count + new.count
        if self._room is None or self._begin + max(needed, self._reserved) > self._room.count:
            capacity = max(needed, self._reserved, int(self.count * GROWTH))
            self._room = _empty(new, capacity)
            if held is not None:
                for buffer, part in zip(_tensors(self._room), _tensors(held), strict=True):
                    buffer[:, : held.count] = part
            self._begin, self._end = 0, 0 if held is None else held.count
        return self._room


def _empty(like: LayerEntries, capacity: int) -> LayerEntries:
    heads = like.keys.shape[0]
    return LayerEntries(
        like.keys.new_empty(heads, capacity, like.keys.shape[-1]),
        like.values.new_empty(heads, capacity, like.values.shape[-1]),
        like.positions.new_empty(heads, capacity),
    )


def _tensors(entries: LayerEntries) -> tuple[Tensor, Tensor, Tensor]:
    return entries.keys, entries.values, entries.positions
