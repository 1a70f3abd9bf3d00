"""H2O: the entries that were looked at most so far, and the latest ones."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kv_compression.allocation import Allocation, Uniform
from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy


@dataclass(frozen=True)
class H2O(Policy):
    """Zhang et al., H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models,
    https://arxiv.org/abs/2306.14048. Attention is summed over all tokens, of the prompt and of the answer: decode with
    the prefill's observer, and select again.

    budget: positions kept per KV head. recent: the fraction of the budget that the latest entries have, as in the paper
    half. allocation: how the budget is divided among the heads. The sums of a group's query heads are added.
    """

    name: ClassVar[str] = "h2o"
    observe = ("sums",)
    budget: int
    recent: float = 0.5
    allocation: Allocation = Uniform()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.recent <= 1:
            raise ValueError(f"the fraction of recent entries ({self.recent}) must be from 0 to 1")

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """The sums. ValueError for an observation without them."""
        if observation.sums is None:
            raise ValueError("H2O needs attention sums: give the prefill observe=policy.observe")
        return [sums[head.positions.long()] for sums, head in zip(observation.sums, entries, strict=True)]

    def protect(self, scores: list[Tensor], observed: int) -> list[Tensor]:
        """The latest entries, however many tokens were observed."""
        recent = round(self.budget * self.recent)
        for head in scores:
            head[max(len(head) - recent, 0) :] = torch.inf
        return scores
