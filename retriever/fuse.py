"""Reciprocal rank fusion: rankings of different kinds to one."""

from collections import defaultdict
from collections.abc import Sequence

K = 60  # Cormack, Clarke and Büttcher, SIGIR 2009


def fuse(rankings: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    """Items with their fused score, best first; ties by the lower item."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, item in enumerate(ranking, 1):
            scores[item] += 1 / (K + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
