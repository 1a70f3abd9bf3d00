"""What running the model leaves behind for the policies, layer by layer."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from kv_compression.rotation import RotaryForm

Observed = Literal["statistics", "sums"]
"""What a policy may ask for beside the queries of the window."""


@dataclass(frozen=True)
class QueryStatistics:
    """Of a layer's queries, turned back to position 0: how many, their sum [query_heads, head_dim] and the sum of their
    outer products [query_heads, head_dim, head_dim], in float64, since long sums lose what a covariance is made of.

    form: how the layer embeds positions, None when it does not. end: the position after the last of them.
    """

    count: int
    total: Tensor
    products: Tensor
    form: RotaryForm | None
    end: int

    @classmethod
    def of(cls, queries: Tensor, form: RotaryForm | None, end: int) -> "QueryStatistics":
        """Of queries at position 0, in float32 [query_heads, tokens, head_dim]."""
        products = queries.transpose(1, 2) @ queries
        return cls(queries.shape[1], queries.sum(dim=1).double(), products.double(), form, end)

    def __add__(self, later: "QueryStatistics") -> "QueryStatistics":
        total, products = self.total + later.total, self.products + later.products
        return QueryStatistics(self.count + later.count, total, products, later.form, later.end)

    @property
    def mean(self) -> Tensor:
        """[query_heads, head_dim], float64."""
        return self.total / self.count

    @property
    def covariance(self) -> Tensor:
        """[query_heads, head_dim, head_dim], float64."""
        mean = self.mean
        return self.products / self.count - mean[:, :, None] * mean[:, None, :]

    def ahead(self, tokens: int) -> tuple[Tensor, Tensor]:
        """Mean and covariance of such queries at the next `tokens` positions, moved by the mean turn; float32."""
        mean, covariance = self.mean.float(), self.covariance.float()
        if self.form is None:
            return mean, covariance
        by = torch.arange(self.end, self.end + tokens, device=mean.device)
        turn = self.form.mean(mean.shape[-1], by)
        return mean @ turn.T, turn @ covariance @ turn.T


@dataclass(frozen=True)
class LayerObservation:
    """The queries of a layer's observation window [query_heads, window, head_dim], after RoPE, and its scaling.

    softcap: the layer caps its attention logits by `softcap * tanh(logits / softcap)`; None when it does not. output:
    the projection of the heads' outputs [hidden, query_heads, value_dim], None where it was not found. importance
    [kv_heads, entries]: of a reconstruction, what the repeated text looked at. statistics: of all queries of the
    prefill. sums [kv_heads, positions]: the attention that every position was given. These three are None where nobody
    asked for them. token_ids [positions]: what was observed, on the CPU; -1 where nothing was.
    """

    queries: Tensor
    scaling: float
    softcap: float | None = None
    output: Tensor | None = None
    importance: Tensor | None = None
    statistics: QueryStatistics | None = None
    sums: Tensor | None = None
    token_ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    @property
    def window(self) -> int:
        """Tokens in the window."""
        return self.queries.shape[1]

    def last(self, window: int) -> "LayerObservation":
        """Of the last `window` tokens only."""
        return replace(self, queries=self.queries[:, -window:])


@dataclass(frozen=True)
class Observation:
    """The observation windows of all layers, from a prefill of `tokens` tokens that ended at the true length `length`.

    `window` is what was asked for; a shorter prefill is observed whole, so that the question before it has no vote.
    """

    layers: Mapping[int, LayerObservation]
    window: int
    tokens: int
    length: int

    @property
    def projected(self) -> bool:
        """Whether the output projections of all layers were found, which CriticalKV needs."""
        return all(layer.output is not None for layer in self.layers.values())

    def of(self, layer: int) -> LayerObservation:
        """The window of one layer."""
        return self.layers[layer]
