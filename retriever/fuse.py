"""Reciprocal rank fusion: rankings of different kinds to one."""

from collections import defaultdict
from collections.abc import Sequence

# Cormack, Clarke and Büttcher (SIGIR 2009) take 60, for long lists. With 60, a passage in the middle of both lists
# passes the first of one; docs/retrieval.md has the measurement.
K = 10


def fuse(rankings: Sequence[tuple[float, Sequence[int]]]) -> list[tuple[int, float]]:
    """Items with their fused score, best first; ties by the lower item. A ranking comes with its weight."""
    scores: defaultdict[int, float] = defaultdict(float)
    for weight, ranking in rankings:
        for rank, item in enumerate(ranking, 1):
            scores[item] += weight / (K + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
