"""The comparison with kvpress: what it takes for a tie, and that nothing else passes for one."""

import numpy as np
import pytest

from evals.parity.compare import Choice, agreement

SCORES = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]


def choice(scores: list[float], kept: set[int]) -> Choice:
    """Of one layer and one head."""
    stays = [at in kept for at in range(len(scores))]
    return Choice(np.array([[scores]], dtype=np.float32), np.array([[stays]]))


def test_the_same_choice_agrees_whatever_scores_the_protected_entries_have() -> None:
    ours = choice([np.inf, *SCORES[1:]], {0, 1, 2})
    found = agreement(ours, choice(SCORES, {0, 1, 2}))
    assert (found.share, found.gap, found.score) == (1.0, 0.0, 0.0)
    assert found.agrees


def test_entries_of_nearly_the_same_score_are_a_tie() -> None:
    tied = [5.0, 4.0, 3.0, 3.0 - 1e-4, 1.0, 0.0]
    found = agreement(choice(tied, {0, 1, 2}), choice(tied, {0, 1, 3}))
    assert found.share == pytest.approx(2 / 3)
    assert found.agrees


@pytest.mark.parametrize("ours", [{0, 1, 3}, {0, 1, 4}, {3, 4, 5}])
def test_another_entry_is_no_tie(ours: set[int]) -> None:
    assert not agreement(choice(SCORES, ours), choice(SCORES, {0, 1, 2})).agrees


def test_a_protected_entry_that_the_other_side_drops_is_no_tie() -> None:
    ours = choice([*SCORES[:5], np.inf], {0, 1, 5})
    assert not agreement(ours, choice(SCORES, {0, 1, 2})).agrees


def test_scores_that_differ_do_not_agree_though_the_choice_is_the_same() -> None:
    other = choice([score * 1.01 for score in SCORES], {0, 1, 2})
    assert not agreement(choice(SCORES, {0, 1, 2}), other).agrees
    assert agreement(choice(SCORES, {0, 1, 2}), other, same_scale=False).agrees


@pytest.mark.parametrize("same_scale", [True, False])
def test_nan_never_agrees(same_scale: bool) -> None:
    right, wrong = choice(SCORES, {0, 1, 2}), choice([*SCORES[:5], np.nan], {0, 1, 2})
    assert not agreement(wrong, right, same_scale=same_scale).agrees
    assert not agreement(right, wrong, same_scale=same_scale).agrees


def test_heads_that_compete_have_one_border() -> None:
    scores = np.array([[[9.0, 8.0, 1.0], [7.0, 3.0, 3.0]]], dtype=np.float32)
    theirs = Choice(scores, np.array([[[True, True, False], [True, True, False]]]))
    tied = Choice(scores, np.array([[[True, True, False], [True, False, True]]]))
    apart = Choice(scores, np.array([[[True, True, True], [True, False, False]]]))
    assert agreement(tied, theirs, competing=2).agrees
    assert not agreement(apart, theirs, competing=2).agrees


def test_choices_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="3 entries are kept on one side, 2 on the other"):
        agreement(choice(SCORES, {0, 1, 2}), choice(SCORES, {0, 1}))


def test_heads_that_do_not_compete_keep_the_same_number() -> None:
    scores = np.ones((1, 2, 2), dtype=np.float32)
    one, other = Choice(scores, np.array([[[True, True], [False, False]]])), Choice(scores, np.full((1, 2, 2), True))
    other.kept[0, :, 0] = False
    assert agreement(one, other, competing=2).agrees
    with pytest.raises(ValueError, match="or elsewhere"):
        agreement(one, other)
