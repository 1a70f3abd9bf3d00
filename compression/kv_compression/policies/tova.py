"""TOVA: the last token votes, alone."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from kv_compression.allocation import Allocation, Uniform
from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy
from kv_compression.weights import attention_weights


@dataclass(frozen=True)
class TOVA(Policy):
    """Oren et al., Transformers are Multi-State RNNs, https://arxiv.org/abs/2401.06104.

    budget: positions kept per KV head, the last token included. window: that token, fixed. allocation: how the budget
    is divided among the heads. The weights are averaged over all heads of a layer, as in the paper, when these hold the
    same positions; over the heads of each group when they do not.
    """

    name: ClassVar[str] = "tova"
    budget: int
    allocation: Allocation = Uniform()
    window: int = field(default=1, init=False)

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """Mean attention of the last query, float32."""
        seen = observation.last(1)
        groups = seen.queries.chunk(len(entries.counts))
        weights = [
            attention_weights(queries, head.keys, seen.scaling, seen.softcap).mean(dim=(0, 1))
            for queries, head in zip(groups, entries, strict=True)
        ]
        dense = entries.dense()
        if dense is not None and bool((dense.positions == dense.positions[0]).all()):
            return list(torch.stack(weights).mean(dim=0).repeat(len(weights), 1))
        return weights
