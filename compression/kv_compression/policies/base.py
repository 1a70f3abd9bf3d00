"""What every policy has: how its score becomes a choice. A policy itself only writes `score`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from kv_compression.cache import LayerEntries


@dataclass(frozen=True)
class LayerObservation:
    """The queries of a layer's observation window [query_heads, window, head_dim] and its attention scaling."""

    queries: Tensor
    scaling: float

    @property
    def window(self) -> int:
        """Tokens in the window."""
        return self.queries.shape[1]


@dataclass(frozen=True)
class Observation:
    """The observation windows of all layers that attended."""

    queries: dict[int, Tensor]
    scaling: dict[int, float]

    def of(self, layer: int) -> LayerObservation:
        """The window of one layer."""
        return LayerObservation(self.queries[layer], self.scaling[layer])


class Policy(ABC):
    """A way to choose which entries of a layer stay. Frozen dataclasses of their paper's parameters derive from it."""

    @abstractmethod
    def score(self, entries: LayerEntries, observation: LayerObservation) -> Tensor:
        """[kv_heads, entries], the higher the more worth keeping; +inf for what must stay."""

    def kept(self, entries: LayerEntries) -> int:
        """How many entries each KV head keeps; at least `entries.count` keeps all."""
        return entries.count

    def choose(self, entries: LayerEntries, observation: LayerObservation) -> Tensor | None:
        """Indices of what stays [kv_heads, kept], ascending; None when everything does."""
        kept = self.kept(entries)
        if kept >= entries.count:
            return None
        best: Tensor = torch.topk(self.score(entries, observation), kept, dim=-1).indices
        return best.sort(dim=-1).values
