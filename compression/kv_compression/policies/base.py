"""What every policy has: how its score and its allocation become a choice. A policy itself only writes `score`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from kv_compression.allocation import Allocation, Uniform
from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation, Observed


class Policy(ABC):
    """A way to choose which entries stay. Frozen dataclasses of their paper's parameters derive from it.

    `budget` is the number of positions kept per KV head on average, everything protected included; None keeps all. The
    `allocation` divides it among the heads. The first `sinks` and the last `window` entries stay whatever their score.
    """

    name: ClassVar[str]
    budget: int | None
    allocation: Allocation = Uniform()
    sinks: int = 0
    window: int = 0
    observe: tuple[Observed, ...] = ()
    """What `score` needs of the prefill beside the window's queries."""

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise ValueError(f"the budget ({self.budget}) must be at least 1")
        if self.budget is not None and not 0 <= self.sinks < self.budget:
            raise ValueError(f"the budget ({self.budget}) must be larger than the number of sinks ({self.sinks})")

    @abstractmethod
    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """For every KV head [entries], the higher the more worth keeping. The result is the caller's to change."""

    def choose(self, layers: Mapping[int, tuple[LayerEntries, LayerObservation]]) -> dict[int, list[Tensor]]:
        """For every layer that loses entries, by its index: of every KV head the indices of what stays, ascending."""
        budget, heads = self.budget, sum(len(entries.counts) for entries, _ in layers.values())
        if budget is None or sum(entries.total for entries, _ in layers.values()) <= budget * heads:
            return {}
        scores = {layer: self._protected_score(*held) for layer, held in layers.items()}
        counts = self.allocation.counts(budget, scores)
        return {
            layer: [index.sort().values for index in self.best(*layers[layer], of_layer, counts[layer])]
            for layer, of_layer in scores.items()
            if counts[layer] != [len(head) for head in of_layer]
        }

    def best(
        self, entries: LayerEntries, observation: LayerObservation, scores: Sequence[Tensor], counts: Sequence[int]
    ) -> list[Tensor]:
        """For every KV head the indices of so many entries, in any order; its scores are inf where protected."""
        return [head.topk(count).indices for head, count in zip(scores, counts, strict=True)]

    def _protected_score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        scores = self.score(entries, observation)
        last = min(self.window, observation.window)
        for head in scores:
            head[: self.sinks] = torch.inf
            head[max(len(head) - last, 0) :] = torch.inf
        return scores
