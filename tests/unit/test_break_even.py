"""The length from which a stored cache is worth reading."""

import math
import random

import pytest

from app.break_even import TRY_AGAIN, BreakEven


def learned(fixed_s: float, token_s: float, computed_s: float, lengths: list[int]) -> BreakEven:
    """From turns whose times follow these three figures exactly."""
    known = BreakEven()
    for tokens in lengths:
        known.computed(tokens, tokens * computed_s)
        known.restored(tokens, fixed_s + tokens * token_s)
    return known


def test_everything_is_restored_as_long_as_a_side_is_unknown() -> None:
    known = BreakEven()
    assert known.worth_restoring(1)
    known.restored(100, 5.0)
    assert known.worth_restoring(1)
    known.computed(10, 0.001)  # too short to say anything
    assert known.worth_restoring(1)
    known.computed(100, 0.1)
    assert not known.worth_restoring(1)


@pytest.mark.parametrize(("fixed", "token", "computed"), [(0.1, 1e-5, 1e-3), (0.5, 0.0, 2e-3), (0.02, 4e-4, 5e-4)])
def test_the_length_is_where_both_cost_the_same(fixed: float, token: float, computed: float) -> None:
    rng = random.Random(0)
    known = learned(fixed, token, computed, [rng.randint(100, 8000) for _ in range(12)])
    length = fixed / (computed - token)
    assert known.length == pytest.approx(length, rel=1e-6)
    assert known.worth_restoring(math.ceil(length) + 1)
    assert not known.worth_restoring(math.floor(length) - 1)


def test_caches_of_one_length_say_nothing_of_a_fixed_part() -> None:
    assert learned(0.1, 1e-5, 1e-3, [1000] * 5).length == 0
    assert learned(2.0, 1e-5, 1e-3, [1000] * 5).length == math.inf


def test_what_is_always_slower_is_tried_again_now_and_then_and_the_newest_counts() -> None:
    known = learned(5.0, 1e-2, 1e-3, [500, 1000, 2000])
    assert known.length == math.inf
    tried = [known.worth_restoring(4000) for _ in range(3 * TRY_AGAIN)]
    assert tried.count(True) == 3
    for tokens in [800, 2000, 4000] * 6:
        known.restored(tokens, tokens * 1e-5)
    assert known.worth_restoring(500)
