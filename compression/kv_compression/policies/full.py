"""Keep everything."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kv_compression.cache import LayerEntries
from kv_compression.policies.base import LayerObservation, Policy


@dataclass(frozen=True)
class Full(Policy):
    """No compression: the reference that the others are measured against."""

    def score(self, entries: LayerEntries, observation: LayerObservation) -> Tensor:
        """Everything must stay."""
        return torch.full(entries.positions.shape, torch.inf, device=entries.positions.device)
