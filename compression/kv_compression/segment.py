"""A piece of a cache that can be stored: the entries of a range of token positions, on the CPU."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kv_compression.cache import LayerEntries
from kv_compression.errors import SegmentError


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


def check_sequence(segments: Sequence[Segment], sliding_windows: Sequence[int | None]) -> None:
    """Raise SegmentError unless the segments make one sequence, from its first token on, for a model of such layers."""
    if not segments or segments[0].start != 0:
        raise SegmentError("the first segment does not begin with the sequence")
    for before, after in zip(segments, segments[1:], strict=False):
        if before.stop != after.start:
            raise SegmentError(f"a segment ends at {before.stop}, and the next begins at {after.start}")
    if any(len(segment.layers) != len(sliding_windows) for segment in segments):
        raise SegmentError(f"the model has {len(sliding_windows)} layers, a segment has another number")
    for index, window in enumerate(sliding_windows):
        pieces = [segment.layers[index] for segment in segments]
        if len({piece.dims for piece in pieces}) != 1:
            raise SegmentError(f"the segments have different shapes in layer {index}")
        if window is not None:
            _check_window(pieces, segments[-1].stop, window)


def _check_window(pieces: Sequence[LayerEntries], stop: int, window: int) -> None:
    """A layer with a sliding window needs each of its last entries."""
    needed = min(window - 1, stop)
    expected = torch.arange(stop - needed, stop, dtype=torch.int32)
    for head in LayerEntries.join([list(pieces) for pieces in zip(*pieces, strict=True)]):
        held = head.positions[len(head.positions) - needed :] if needed else head.positions[:0]
        if len(head.positions) < needed or not torch.equal(held, expected):
            raise SegmentError(f"a layer with a sliding window lacks some of its last {needed} entries")


def join(before: Segment, after: Segment) -> Segment:
    """One segment from two of which the second begins where the first ends. Raises SegmentError for any others."""
    if before.stop != after.start or len(before.layers) != len(after.layers):
        raise SegmentError(f"a segment ends at {before.stop}, and the next begins at {after.start}")
    layers = [
        LayerEntries.join([list(pieces) for pieces in zip(first, second, strict=True)])
        for first, second in zip(before.layers, after.layers, strict=True)
    ]
    return Segment(before.start, after.stop, layers)
