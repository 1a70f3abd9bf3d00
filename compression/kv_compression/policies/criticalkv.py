"""CriticalKV: a second look at what another policy would keep, by what the values do to the output."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy

EPSILON = 1e-4  # the paper's: entries with a score of 0 are told apart by their values
BLOCK = 512  # entries whose projected values are in memory at once


@dataclass(frozen=True)
class CriticalKV(Policy):
    """Feng et al., Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective,
    https://arxiv.org/abs/2502.03805.

    scorer: the policy whose scores, budget, allocation and protection are used. first_stage: the fraction of each
    head's entries that its scores alone choose; the others are chosen by score times the L1 norm of the value behind
    the output projection, averaged over the group.
    """

    name: ClassVar[str] = "criticalkv"
    scorer: Policy
    first_stage: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.first_stage <= 1:
            raise ValueError(f"the fraction of the first stage ({self.first_stage}) must be from 0 to 1")
        if self.scorer.budget is None or type(self.scorer).choose is not Policy.choose:
            raise ValueError(f"the scorer ({self.scorer.name}) must choose by its scores and a budget")
        for name in ("budget", "allocation", "sinks", "window", "observe"):
            object.__setattr__(self, name, getattr(self.scorer, name))

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """The scorer's."""
        return self.scorer.score(entries, observation)

    def protect(self, scores: list[Tensor], observed: int) -> list[Tensor]:
        """As the scorer does."""
        return self.scorer.protect(scores, observed)

    def best(
        self, entries: LayerEntries, observation: LayerObservation, scores: Sequence[Tensor], counts: Sequence[int]
    ) -> list[Tensor]:
        """In two stages. ValueError for a model whose output projection was not found, and for negative scores."""
        if observation.output is None:
            raise ValueError("CriticalKV needs the output projection, which this model has under no known name")
        if any(bool((score < 0).any()) for score in scores):
            raise ValueError(f"CriticalKV weighs attention; the scores of {self.scorer.name} are not, and are negative")
        groups = observation.output.chunk(len(counts), dim=1)
        chosen = []
        for head, output, score, count in zip(entries, groups, scores, counts, strict=True):
            second = (score + EPSILON) * _projected_norm(head.values, output)
            second[score.topk(int(count * self.first_stage)).indices] = torch.inf
            second[score.isposinf()] = torch.inf
            chosen.append(second.topk(count).indices)
        return chosen


def _projected_norm(values: Tensor, output: Tensor) -> Tensor:
    """[entries]: of values [entries, value_dim] behind a group's projections [hidden, group, value_dim]."""
    projections = output.float().unbind(dim=1)
    norms = [
        torch.stack([(rows.float() @ projection.T).abs().sum(dim=-1) for projection in projections]).mean(dim=0)
        for rows in values.split(BLOCK)
    ]
    return torch.cat(norms)
