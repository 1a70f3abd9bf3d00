"""What every policy has: how its score becomes a choice. A policy itself only writes `score`."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation


class Policy(ABC):
    """A way to choose which entries of a layer stay. Frozen dataclasses of their paper's parameters derive from it.

    `budget` is the number of positions kept per KV head, everything protected included; None keeps all. The first
    `sinks` and the last `window` entries stay whatever their score.
    """

    name: ClassVar[str]
    budget: int | None
    sinks: int = 0
    window: int = 0

    @abstractmethod
    def score(self, entries: LayerEntries, observation: LayerObservation) -> Tensor:
        """[kv_heads, entries], the higher the more worth keeping. The result is the caller's to change."""

    def choose(self, entries: LayerEntries, observation: LayerObservation) -> Tensor | None:
        """Indices of what stays [kv_heads, budget], ascending; None when everything does."""
        if self.budget is None or self.budget >= entries.count:
            return None
        score = self.score(entries, observation)
        score[:, : self.sinks] = torch.inf
        score[:, entries.count - min(self.window, observation.window) :] = torch.inf
        return score.topk(self.budget, dim=-1).indices.sort(dim=-1).values
