"""Tokens are drawn with the probabilities that temperature and top_p say, and by the seed alone."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from app.engine.sampling import Sampler, Sampling, nucleus

LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.5, 0.0, 2.0, -3.0, 1.0])
DRAWS = 20_000


def expected(temperature: float, top_p: float) -> list[float]:
    """The probability of every token, written out."""
    weights = [math.exp(logit / temperature) for logit in LOGITS.tolist()]
    probabilities = [weight / sum(weights) for weight in weights]
    kept: list[int] = []
    for token in sorted(range(len(weights)), key=lambda token: (-probabilities[token], token)):
        if sum(probabilities[other] for other in kept) < top_p:
            kept.append(token)
    mass = sum(probabilities[token] for token in kept)
    return [probabilities[token] / mass if token in kept else 0.0 for token in range(len(weights))]


def draw(sampling: Sampling, count: int, logits: torch.Tensor = LOGITS) -> Sequence[int]:
    sampler = Sampler(sampling)
    return [sampler.next(logits) for _ in range(count)]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.8), (1.5, 0.3)])
def test_tokens_are_drawn_by_their_probabilities(temperature: float, top_p: float) -> None:
    counts = Counter(draw(Sampling(temperature, top_p, seed=1), DRAWS))
    for token, probability in enumerate(expected(temperature, top_p)):
        spread = math.sqrt(probability * (1 - probability) / DRAWS)
        assert abs(counts[token] / DRAWS - probability) <= 4 * spread


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.9, 0.999, 1 - 1e-12])
def test_the_nucleus_is_the_smallest_that_has_the_mass(top_p: float) -> None:
    probabilities = torch.softmax(torch.randn(5000, generator=torch.Generator().manual_seed(3)).double() * 4, dim=-1)
    kept = nucleus(probabilities, top_p)
    inside = kept[kept > 0]
    assert inside.sum() >= top_p - 1e-12
    assert inside.sum() - inside.min() < top_p
    assert len(inside) == 5000 or inside.min() >= probabilities[kept == 0].max()


def test_greedy_takes_the_first_of_the_largest_whatever_the_seed() -> None:
    assert set(draw(Sampling(0.0, 0.5, seed=7), 20)) == {1}
    assert set(draw(Sampling(1e-300, 1.0, seed=7), 20, LOGITS + torch.arange(8) / 100)) == {5}


def test_a_seed_gives_its_own_tokens() -> None:
    flat = torch.zeros(1000)
    tokens = [draw(Sampling(1.0, seed=seed), 12, flat) for seed in (0, 0, 1, 2**32, 2**63 - 1, 2**32 - 1)]
    assert tokens[0] == tokens[1]
    assert len({tuple(drawn) for drawn in tokens}) == 5
    assert draw(Sampling(1.0), 12, flat) != draw(Sampling(1.0), 12, flat)


def test_logits_that_differ_in_their_last_bits_draw_the_same() -> None:
    """As they do between a turn alone and a turn beside others; here of almost equal tokens."""
    logits = torch.randn(200, generator=torch.Generator().manual_seed(1)) / 1000
    nudged = logits + torch.randn(200, generator=torch.Generator().manual_seed(2)) * 1e-6
    assert logits.argsort().tolist() != nudged.argsort().tolist()
    sampling = Sampling(1.0, 0.999, seed=5)
    assert draw(sampling, 500, logits) == draw(sampling, 500, nudged)


def test_logits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Sampler(Sampling(1.0)).next(torch.tensor([0.0, math.nan]))
