"""Keys and values of one layer: preallocated buffers in which entries are appended and from which they are chosen.

Shapes: keys [kv_heads, entries, head_dim], values [kv_heads, entries, value_dim], positions [kv_heads, entries] int32.
Keys are stored after RoPE; `positions` are the true positions of their tokens, ascending in every head.
"""

from dataclasses import dataclass

import torch
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

    def slice(self, start: int, stop: int) -> "LayerEntries":
        """A view of the entries from index `start` to `stop` of every head."""
        return LayerEntries(self.keys[:, start:stop], self.values[:, start:stop], self.positions[:, start:stop])


class LayerBuffer:
    """Room for the entries of one layer. Grows by half when it is full; `reserve` makes room once instead."""

    def __init__(self) -> None:
        self.count = 0
        self._room: LayerEntries | None = None
        self._reserved = 0

    @property
    def entries(self) -> LayerEntries | None:
        """A view of what is held; None before the first append."""
        return self._room.slice(0, self.count) if self._room is not None else None

    @property
    def nbytes(self) -> int:
        """Bytes of the entries held, without the room kept free."""
        return self.entries.nbytes if self.entries is not None else 0

    def append(self, new: LayerEntries) -> LayerEntries:
        """Copy `new` behind what is held; a view of everything."""
        room = self._make_room(new, self.count + new.count)
        for buffer, part in zip(_tensors(room), _tensors(new), strict=True):
            buffer[:, self.count : self.count + new.count] = part
        self.count += new.count
        return room.slice(0, self.count)

    def reserve(self, total: int) -> None:
        """The next append makes room for `total` entries at once."""
        self._reserved = total

    def drop_first(self, count: int) -> None:
        """Forget the first `count` entries."""
        if count > 0 and self._room is not None:
            kept = self._room.slice(count, self.count)
            for buffer, part in zip(_tensors(self._room), _tensors(kept), strict=True):
                buffer[:, : kept.count] = part.clone()
            self.count = kept.count

    def _make_room(self, like: LayerEntries, total: int) -> LayerEntries:
        if self._room is None or self._room.count < total:
            self._resize(like, max(total, self._reserved, int(self.count * GROWTH)))
        assert self._room is not None
        return self._room

    def _resize(self, like: LayerEntries, capacity: int) -> None:
        held = self.entries
        heads = like.positions.shape[0]
        self._room = LayerEntries(
            like.keys.new_empty(heads, capacity, like.keys.shape[-1]),
            like.values.new_empty(heads, capacity, like.values.shape[-1]),
            torch.empty(heads, capacity, dtype=torch.int32, device=like.keys.device),
        )
        if held is not None:
            for buffer, part in zip(_tensors(self._room), _tensors(held), strict=True):
                buffer[:, : self.count] = part


def _tensors(entries: LayerEntries) -> tuple[Tensor, Tensor, Tensor]:
    return entries.keys, entries.values, entries.positions
