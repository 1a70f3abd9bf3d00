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
        if self.budget is None or self.fits([entries.counts for entries, _ in layers.values()]):
            return {}
        scores = {layer: self.protected_score(*held) for layer, held in layers.items()}
        counts = self.allocation.counts(self.budget, scores)
        return {
            layer: self.pick(*held, scores[layer], counts[layer])
            for layer, held in layers.items()
            if counts[layer] != list(held[0].counts)
        }

    def fits(self, counts: Sequence[Sequence[int]]) -> bool:
        """Whether a model whose heads hold so many entries is within the budget, and left whole."""
        return self.budget is None or sum(map(sum, counts)) <= self.budget * sum(map(len, counts))

    def pick(
        self, entries: LayerEntries, observation: LayerObservation, scores: Sequence[Tensor], counts: Sequence[int]
    ) -> list[Tensor]:
        """Of every KV head the indices of so many entries, ascending. The scores are inf where protected."""
        best = self.best(entries, observation, scores, counts)
        return [indices.sort().values for indices in best]

    def best(
        self, entries: LayerEntries, observation: LayerObservation, scores: Sequence[Tensor], counts: Sequence[int]
    ) -> list[Tensor]:
        """For every KV head the indices of so many entries, in any order; its scores are inf where protected."""
        return [head.topk(count).indices for head, count in zip(scores, counts, strict=True)]

    def protected_score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """The scores of a layer, inf where an entry stays whatever its score."""
        return self.protect(self.score(entries, observation), observation.window)

    def protect(self, scores: list[Tensor], observed: int) -> list[Tensor]:
        """Writes inf over the scores of the sinks and the window, of which so many tokens were observed."""
        last = min(self.window, observed)
        for head in scores:
            head[: self.sinks] = torch.inf
            head[max(len(head) - last, 0) :] = torch.inf
        return scores
