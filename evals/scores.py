"""Scores of answers, and how sure a difference between two rows of scores is."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000


def holds(text: str, expected: Sequence[str]) -> int:
    """How many of the expected strings are in the text, whatever their case."""
    return sum(part.lower() in text.lower() for part in expected)


def words(text: str) -> list[str]:
    """In lower case, without punctuation and articles, as SQuAD (https://arxiv.org/abs/1606.05250) compares them."""
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def f1(answer: str, gold: str) -> float:
    """Harmonic mean of the shares of the answer's and of the gold answer's words that both have."""
    ours, theirs = words(answer), words(gold)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def contained(answer: str, gold: str) -> bool:
    """Whether the gold answer's words follow one another in the answer."""
    return f" {' '.join(words(gold))} " in f" {' '.join(words(answer))} "


def relative_interval(ours: Sequence[float], theirs: Sequence[float], seed: int) -> tuple[float, float]:
    """The 95% interval of mean(ours) / mean(theirs) - 1, by bootstrap: pairs are drawn together, with replacement."""
    pairs = np.array([ours, theirs])
    drawn = np.random.default_rng(seed).integers(pairs.shape[1], size=(RESAMPLES, pairs.shape[1]))
    means = pairs[:, drawn].mean(axis=2)
    low, high = np.quantile(means[0] / means[1] - 1, [0.025, 0.975])
    return float(low), float(high)
