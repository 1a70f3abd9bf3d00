"""StreamingLLM: the first tokens and the last ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kv_compression.cache import LayerEntries
from kv_compression.policies.base import LayerObservation, Policy


@dataclass(frozen=True)
class StreamingLLM(Policy):
    """Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453.

    budget: positions kept per KV head, the sinks included. sinks: first positions that always stay.
    """

    budget: int
    sinks: int = 4

    def __post_init__(self) -> None:
        if self.sinks >= self.budget:
            raise ValueError(f"the budget ({self.budget}) must be larger than the number of sinks ({self.sinks})")

    def kept(self, entries: LayerEntries) -> int:
        """The budget."""
        return self.budget

    def score(self, entries: LayerEntries, observation: LayerObservation) -> Tensor:
        """The later the better; the sinks must stay."""
        return entries.positions.float().masked_fill(entries.positions < self.sinks, torch.inf)
