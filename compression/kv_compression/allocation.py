"""Allocations: how a budget becomes a number of entries for every KV head. Any of them goes with any score.

A budget is the number of positions kept per KV head on average over all heads; no head keeps fewer than are protected,
or more than it holds.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Scores = Mapping[int, Sequence[Tensor]]
"""For every layer, by its index: the scores of every KV head's entries [entries]; inf for those that are protected."""

Compared = Literal["nothing", "layer", "model"]


class Allocation(ABC):
    """A rule. Frozen dataclasses derive from it."""

    @abstractmethod
    def counts(self, budget: int, scores: Scores) -> dict[int, list[int]]:
        """How many entries every head of every layer keeps."""

    @property
    def compares(self) -> Compared:
        """Which scores `counts` compares with each other; with nothing, only their number and those that are inf count.

        What does not compare those of the whole model can choose one layer after another.
        """
        return "model"


@dataclass(frozen=True)
class Uniform(Allocation):
    """The same number for every head."""

    compares = "nothing"

    def counts(self, budget: int, scores: Scores) -> dict[int, list[int]]:
        """The budget, or all that a head holds."""
        return {layer: [min(budget, len(head)) for head in heads] for layer, heads in scores.items()}


@dataclass(frozen=True)
class Pyramid(Allocation):
    """Cai et al., PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling,
    https://arxiv.org/abs/2406.02069. The first layer keeps most and the last least, in even steps; the last keeps
    1/`beta` of the mean.
    """

    compares = "nothing"
    beta: float = 20.0

    def __post_init__(self) -> None:
        if self.beta < 1:
            raise ValueError(f"beta ({self.beta}) must be at least 1")

    def counts(self, budget: int, scores: Scores) -> dict[int, list[int]]:
        """Shares fall linearly over the layers that are given, in their order."""
        least, last = 1 / self.beta, max(len(scores) - 1, 1)
        shares = {
            layer: [2 - least - (2 - 2 * least) * place / last] * len(scores[layer])
            for place, layer in enumerate(sorted(scores))
        }
        return _fill(budget, scores, shares)


@dataclass(frozen=True)
class HeadAdaptive(Allocation):
    """Feng et al., Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation,
    https://arxiv.org/abs/2407.11550: the best scores are kept, whichever heads they are in.

    over: heads compete within their `layer`, as in the paper, or within the whole `model`. floor: the part of the
    budget that every head has for itself (the paper's safeguard).
    """

    over: Literal["layer", "model"] = "layer"
    floor: float = 0.2

    def __post_init__(self) -> None:
        if self.over not in ("layer", "model"):
            raise ValueError(f"over ({self.over!r}) must be 'layer' or 'model'")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"the floor ({self.floor}) must be from 0 to 1")

    @property
    def compares(self) -> Compared:
        """As `over` says."""
        return self.over

    def counts(self, budget: int, scores: Scores) -> dict[int, list[int]]:
        """By the number of each head's entries among the best."""
        groups = [[layer] for layer in scores] if self.over == "layer" else [list(scores)]
        found: dict[int, list[int]] = {}
        for group in groups:
            heads = [head for layer in group for head in scores[layer]]
            found |= _by_layer({layer: scores[layer] for layer in group}, _best(budget, heads, self.floor))
        return found


@dataclass(frozen=True)
class Profile(Allocation):
    """The shares that a head profile gives the heads: `shares[layer][head]`, relative to the mean."""

    compares = "nothing"
    shares: tuple[tuple[float, ...], ...]

    def counts(self, budget: int, scores: Scores) -> dict[int, list[int]]:
        """By the shares. ValueError for a profile of another model."""
        if any(layer >= len(self.shares) or len(self.shares[layer]) != len(scores[layer]) for layer in scores):
            raise ValueError("the head profile has other layers or heads than the model")
        return _fill(budget, scores, self.shares)


def _fill(
    budget: int, scores: Scores, shares: Mapping[int, Sequence[float]] | Sequence[Sequence[float]]
) -> dict[int, list[int]]:
    """Numbers in proportion to the shares; what a head cannot take (it holds less) goes to the others."""
    heads = [head for layer in scores for head in scores[layer]]
    weights = torch.tensor([share for layer in scores for share in shares[layer]], dtype=torch.float64).clamp(min=1e-6)
    most = torch.tensor([float(len(head)) for head in heads], dtype=torch.float64)
    least = torch.tensor([float(head.isposinf().sum()) for head in heads], dtype=torch.float64)
    total = min(float(budget * len(heads)), float(most.sum()))
    low, high = 0.0, float((most / weights).max())
    for _ in range(60):  # the factor at which the clamped shares make the total
        factor = (low + high) / 2
        if float((weights * factor).clamp(min=least, max=most).sum()) < total:
            low = factor
        else:
            high = factor
    return _by_layer(scores, (weights * high).clamp(min=least, max=most).round().long().tolist())


def _by_layer(scores: Scores, counts: Sequence[int]) -> dict[int, list[int]]:
    """Numbers of all heads, layer by layer, as each layer's list."""
    following = iter(counts)
    return {layer: [next(following) for _ in heads] for layer, heads in scores.items()}


def _best(budget: int, heads: Sequence[Tensor], floor: float) -> list[int]:
    """Of the entries of these heads: each head's own best up to the floor, then the best of all."""
    own = [min(max(round(budget * floor), int(head.isposinf().sum())), len(head)) for head in heads]
    rest = [head.sort(descending=True).values[count:] for head, count in zip(heads, own, strict=True)]
    free = min(max(budget * len(heads) - sum(own), 0), sum(map(len, rest)))
    best = torch.cat(rest).topk(free).indices
    owners = torch.repeat_interleave(torch.tensor([len(head) for head in rest], device=best.device))
    won = torch.bincount(owners[best], minlength=len(heads)).tolist()
    return [count + more for count, more in zip(own, won, strict=True)]
