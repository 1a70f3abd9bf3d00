"""Blend: what either of two policies holds important."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy


@dataclass(frozen=True)
class Blend(Policy):
    """The weighted mean of two policies' scores, each divided by its sum over a head's entries. Of this project.

    Made for SnapKV with ExpectedAttention: what the question looks at, and what the text is known by whatever is asked.

    scorer: the policy whose budget and allocation are used. other: the second one; its budget and allocation are not
    used. share: the weight of the second, from 0 to 1. What either protects is protected.
    """

    name: ClassVar[str] = "blend"
    scorer: Policy
    other: Policy
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"the share of the second policy ({self.share}) must be from 0 to 1")
        for policy in (self.scorer, self.other):
            kind = type(policy)
            if policy.budget is None or kind.choose is not Policy.choose or kind.best is not Policy.best:
                raise ValueError(f"a blended policy ({policy.name}) must choose by its scores and a budget")
        inherited = {
            "budget": self.scorer.budget,
            "allocation": self.scorer.allocation,
            "sinks": max(self.scorer.sinks, self.other.sinks),
            "window": max(self.scorer.window, self.other.window),
            "observe": tuple(dict.fromkeys((*self.scorer.observe, *self.other.observe))),
        }
        for name, value in inherited.items():
            object.__setattr__(self, name, value)
        super().__post_init__()

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """ValueError for scores that are negative, like KeyDiff's: they are no shares of anything."""
        first, second = (_shares(policy, entries, observation) for policy in (self.scorer, self.other))
        return [torch.lerp(*both, self.share) for both in zip(first, second, strict=True)]


def _shares(policy: Policy, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
    """Of every KV head [entries], float32, with the sum 1, or 0 throughout."""
    scores = [score.float() for score in policy.score(entries, observation)]
    if any(bool((score < 0).any()) for score in scores):
        raise ValueError(f"only scores that are not negative can be blended; those of {policy.name} are")
    return [score / score.sum().clamp(min=torch.finfo(torch.float32).tiny) for score in scores]
