"""How far two choices agree, and whether what they do not agree on is more than rounding."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-3
"""Scores this close, relatively, are a tie: float32 through all the layers of a model."""


@dataclass(frozen=True)
class Choice:
    """Of one text by one policy, [layers, kv_heads, tokens]: scores, inf where none decides, and what is kept."""

    scores: NDArray[np.float32]
    kept: NDArray[np.bool_]


@dataclass(frozen=True)
class Agreement:
    """Of two choices of one text.

    kept: entries that each side keeps. shared: those that both keep. gap: the largest relative distance, in the other
    side's scores, between an entry that only one keeps and one that only the other keeps. score: the largest relative
    difference of two scores. Both are NaN when any score is.
    """

    kept: int
    shared: int
    gap: float
    score: float

    @property
    def share(self) -> float:
        """Of the kept entries, those that both keep."""
        return self.shared / self.kept

    @property
    def agrees(self) -> bool:
        """Whether nothing but rounding differs; never with a NaN."""
        return self.gap <= ROUNDING and self.score <= ROUNDING


def agreement(ours: Choice, theirs: Choice, *, competing: int = 1, same_scale: bool = True) -> Agreement:
    """Of the choices of one text. competing: KV heads, one after another, that share a budget. same_scale: whether the
    scores are the same numbers, and not only in the same order.

    ValueError when one side keeps more than the other.
    """
    sides = [side.reshape(-1, competing * side.shape[-1]) for side in (ours.kept, theirs.kept, theirs.scores)]
    if (sides[0].sum(axis=-1) != sides[1].sum(axis=-1)).any():
        raise ValueError(f"{sides[0].sum()} entries are kept on one side, {sides[1].sum()} on the other, or elsewhere")
    kept, shared = int(ours.kept.sum()), int((ours.kept & theirs.kept).sum())
    if np.isnan(ours.scores).any() or np.isnan(theirs.scores).any():
        return Agreement(kept, shared, np.nan, np.nan)
    gaps = [_gap(*group) for group in zip(*sides, strict=True)]
    return Agreement(kept, shared, max(gaps), _difference(ours, theirs) if same_scale else 0.0)


def _gap(ours: NDArray[np.bool_], theirs: NDArray[np.bool_], scores: NDArray[np.float32]) -> float:
    """Of heads that share a budget: between the worst entry that only we keep and the best that only they keep."""
    if (ours == theirs).all():
        return 0.0
    worst, best = scores[ours & ~theirs].min(), scores[theirs & ~ours].max()
    return float(_relative(*map(np.asarray, (worst, best, np.median(abs(scores))))))


def _difference(ours: Choice, theirs: Choice) -> float:
    """The largest of the scores that decide; where one is close to 0, relative to the head's median."""
    usual = np.broadcast_to(np.median(abs(theirs.scores), axis=-1, keepdims=True), theirs.scores.shape)
    decides = ours.scores < np.inf
    return float(_relative(*(numbers[decides] for numbers in (ours.scores, theirs.scores, usual))).max())


def _relative(one: NDArray[np.float32], other: NDArray[np.float32], usual: NDArray[np.float32]) -> NDArray[np.float32]:
    """The distance of two numbers as a part of the largest of them and of what is usual; 0 for two zeros."""
    size = np.maximum(np.maximum(abs(one), abs(other)), usual)
    return np.asarray(abs(one - other) / np.where(size > 0, size, 1))
