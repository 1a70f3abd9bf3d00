"""How much head profiles agree: by the number of texts, by source, by length and budget."""

import random
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from evals.profile_texts import Measured

Array = NDArray[np.float64]
DRAWS = 200


def distance(ours: Array, theirs: Array) -> float:
    """Total variation of the shares, each taken as parts of 1."""
    return float(np.abs(ours / ours.sum() - theirs / theirs.sum()).sum() / 2)


def correlation(ours: Array, theirs: Array) -> float:
    """Of the shares of all heads."""
    return float(np.corrcoef(ours.ravel(), theirs.ravel())[0, 1])


def mean_of(measured: Sequence[Measured], tokens: int, budget: int, source: str | None = None) -> Array | None:
    """The profile of all texts of a source; without one, the mean of the sources' profiles. None when there is none."""
    if source is None:
        found = [mean_of(measured, tokens, budget, name) for name in sorted({one.source for one in measured})]
        means = [mean for mean in found if mean is not None]
    else:
        means = of_source(measured, tokens, budget, source)
    return np.mean(means, axis=0) if means else None


def of_source(measured: Sequence[Measured], tokens: int, budget: int, source: str) -> list[Array]:
    """Each text's shares."""
    alike = [one for one in measured if one.source == source and one.tokens == tokens]
    return [np.array(one.shares[budget]) for one in alike if budget in one.shares]


def by_count(shares: Sequence[Array], seed: int) -> dict[int, tuple[float, float]]:
    """1, 2, 4, ... texts -> correlation and distance of their mean and that of as many held out as there are in half.

    The means over drawn orders of the texts.
    """
    half = len(shares) // 2
    counts = [2**power for power in range(half.bit_length())]
    orders = random.Random(seed)
    drawn = [orders.sample(list(shares), len(shares)) for _ in range(DRAWS)]
    found = {}
    for count in counts:
        pairs = [(np.mean(order[:count], axis=0), np.mean(order[half:], axis=0)) for order in drawn]
        found[count] = (
            float(np.mean([correlation(*pair) for pair in pairs])),
            float(np.mean([distance(*pair) for pair in pairs])),
        )
    return found


def matrix(means: Mapping[str, Array | None]) -> dict[str, list[str]]:
    """Every profile against every other: correlation and distance."""
    known = {name: mean for name, mean in means.items() if mean is not None}
    return {
        name: [f"{correlation(ours, theirs):.3f} / {distance(ours, theirs):.3f}" for theirs in known.values()]
        for name, ours in known.items()
    }


def read_at_all(measured: Sequence[Measured], lengths: Sequence[int]) -> list[Measured]:
    """Those of the documents that were read at every one of these lengths."""
    seen = {(one.source, one.document, one.tokens) for one in measured}
    return [one for one in measured if all((one.source, one.document, tokens) in seen for tokens in lengths)]
