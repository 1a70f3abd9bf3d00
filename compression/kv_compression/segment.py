"""A piece of a cache that can be stored: the entries of a range of token positions, on the CPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_compression.cache import LayerEntries


@dataclass(frozen=True)
class Segment:
    """Entries with positions from `start` to `stop` (the end excluded), layer by layer.

    `stop` is the true length of the cache after this segment, however many entries were kept of it.
    """

    start: int
    stop: int
    layers: Sequence[LayerEntries]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and positions."""
        return sum(layer.nbytes for layer in self.layers)
