"""Knorm: entries whose keys are short are looked at most."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kv_compression.allocation import Allocation, Uniform
from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy


@dataclass(frozen=True)
class Knorm(Policy):
    """Devoto et al., A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression,
    https://arxiv.org/abs/2406.11430. It knows no question.

    budget: positions kept per KV head. allocation: how it is divided among the heads.
    """

    name: ClassVar[str] = "knorm"
    budget: int
    allocation: Allocation = Uniform()

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """The shorter the key, the better."""
        return [-head.keys.float().norm(dim=-1) for head in entries]
