"""AUROC and bound, against values counted by hand."""

import numpy as np

from evals.answerable import auroc, best_bound


def test_auroc_counts_pairs() -> None:
    assert auroc(np.array([0.9, 0.5]), np.array([0.5, 0.1])) == (1 + 1 + 0.5 + 1) / 4
    assert auroc(np.array([0.1]), np.array([0.9])) == 0


def test_the_best_bound_decides_both_kinds_best() -> None:
    assert best_bound(np.array([0.9, 0.8, 0.2]), np.array([0.5, 0.3, 0.1])) == 0.8
