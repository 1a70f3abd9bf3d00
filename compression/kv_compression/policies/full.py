"""Keep everything."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy


@dataclass(frozen=True)
class Full(Policy):
    """No compression: the reference that the others are measured against."""

    name: ClassVar[str] = "full"
    budget: None = None

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """All alike."""
        return [torch.zeros(count, device=entries.positions.device) for count in entries.counts]
