"""Scores of two kinds to one ranking."""

from collections.abc import Mapping

# chosen by evaluation: docs/retrieval.md has the table
WORDS_WEIGHT = 0.4


def fuse(words: Mapping[int, float], similarities: Mapping[int, float]) -> list[tuple[int, float]]:
    """Items with their fused score, best first; ties by the lower item.

    `words`: BM25, which has no bounds, so that the best of the query counts as 1. `similarities`: cosines of all items.
    """
    most = max(words.values(), default=0.0) or 1.0
    scores = {
        item: WORDS_WEIGHT * words.get(item, 0.0) / most + (1 - WORDS_WEIGHT) * cosine
        for item, cosine in similarities.items()
    }
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
