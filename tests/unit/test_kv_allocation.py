"""Allocations: the budget is the mean, nobody gets more than they have or less than is protected."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kv_compression import Allocation, HeadAdaptive, Profile, Pyramid, Uniform

SHARES = ((0.02, 3.0), (1.0, 0.0), (0.5, 1.5))
ALLOCATIONS = [
    Uniform(),
    Pyramid(),
    Pyramid(1.0),
    HeadAdaptive(),
    HeadAdaptive("model", floor=0.0),
    HeadAdaptive("layer", floor=1.0),
    Profile(SHARES),
]


def _scores(sizes: list[int], protected: int = 0) -> dict[int, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(sum(sizes))
    heads = [torch.rand(size, generator=generator) for size in sizes]
    for head in heads:
        head[len(head) - min(protected, len(head)) :] = torch.inf
    return {0: heads[:2], 1: heads[2:4], 2: heads[4:]}


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@given(budget=st.integers(8, 120), protected=st.integers(0, 8))
def test_the_budget_is_the_mean_over_the_heads(allocation: Allocation, budget: int, protected: int) -> None:
    scores = _scores([100] * 6, protected)
    counts = [count for layer in allocation.counts(budget, scores).values() for count in layer]
    assert sum(counts) == pytest.approx(min(budget, 100) * 6, abs=3)
    assert all(protected <= count <= 100 for count in counts)


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@given(sizes=st.lists(st.integers(1, 60), min_size=6, max_size=6), budget=st.integers(1, 80))
def test_no_head_keeps_more_than_it_holds(allocation: Allocation, sizes: list[int], budget: int) -> None:
    counts = [count for layer in allocation.counts(budget, _scores(sizes)).values() for count in layer]
    assert all(0 <= count <= size for count, size in zip(counts, sizes, strict=True))
    assert sum(counts) <= min(budget * 6, sum(sizes)) + 3


def test_a_profile_is_followed_and_what_a_head_cannot_take_goes_to_the_others() -> None:
    assert Profile(((1.0, 3.0),)).counts(20, {0: list(torch.rand(2, 100))}) == {0: [10, 30]}
    assert Profile(((1.0, 3.0),)).counts(20, {0: [torch.rand(100), torch.rand(25)]}) == {0: [15, 25]}
    assert Profile(((0.0, 3.0),)).counts(80, {0: list(torch.rand(2, 100))}) == {0: [60, 100]}


def test_a_profile_of_another_model_is_refused() -> None:
    for shares in (((1.0, 1.0),), ((1.0,), (1.0,), (1.0,))):
        with pytest.raises(ValueError, match="other layers or heads"):
            Profile(shares).counts(10, _scores([20] * 6))


def test_a_pyramid_narrows() -> None:
    counts = Pyramid(4.0).counts(40, _scores([100] * 6))
    assert [layer[0] for layer in counts.values()] == [70, 40, 10]


def test_the_best_scores_win_whichever_heads_have_them() -> None:
    low, high = torch.linspace(0, 1, 50), torch.linspace(2, 3, 50)
    scores = {0: [low, high], 1: [low.clone(), low.clone()]}
    assert HeadAdaptive("layer", floor=0.0).counts(20, scores) == {0: [0, 40], 1: [20, 20]}
    assert HeadAdaptive("model", floor=0.0).counts(10, scores) == {0: [0, 40], 1: [0, 0]}
    assert HeadAdaptive("layer", floor=0.5).counts(20, scores)[0] == [10, 30]


@pytest.mark.parametrize("make", [lambda: Pyramid(0.5), lambda: HeadAdaptive("head"), lambda: HeadAdaptive(floor=1.5)])
def test_parameters_that_make_no_sense_are_refused(make: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()  # type: ignore[operator]
