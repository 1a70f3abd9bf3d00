"""Scores of one ranking."""

import math
from collections.abc import Collection, Sequence

from retriever import Passage


def ndcg(ranked: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Normalised discounted cumulative gain of the first `k`, all that is relevant being equally so (Järvelin and
    Kekäläinen, 2002)."""
    gain = sum(1 / math.log2(rank + 1) for rank, item in enumerate(ranked[:k], 1) if item in relevant)
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, min(len(relevant), k) + 1))


def recall(ranked: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Share of what is relevant among the first `k`."""
    return len(set(ranked[:k]) & set(relevant)) / len(relevant)


def within(ranked: Sequence[Passage], sizes: Sequence[int], budget: int) -> list[Passage]:
    """The first passages that together are no longer than `budget`, in the unit of `sizes`."""
    taken, used = [], 0
    for passage, size in zip(ranked, sizes, strict=True):
        used += size
        if used > budget:
            break
        taken.append(passage)
    return taken


def span_scores(passages: Sequence[Passage], spans: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Recall and precision by character of passages of one document against gold spans."""
    found = {at for passage in passages for at in range(passage.start, passage.end)}
    gold = {at for start, end in spans for at in range(start, end)}
    common = len(found & gold)
    return common / len(gold), common / max(len(found), 1)
