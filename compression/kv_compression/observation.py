"""What running the model leaves behind for the policies, layer by layer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

Observed = Literal["statistics", "sums"]
"""What a policy may ask for beside the queries of the window."""


@dataclass(frozen=True)
class QueryStatistics:
    """Of a layer's queries at position 0: how many, their sum [query_heads, head_dim] and the sum of their outer
    products [query_heads, head_dim, head_dim], in float64: long sums lose what a covariance is made of."""

    count: int
    total: Tensor
    products: Tensor

    @classmethod
    def of(cls, queries: Tensor) -> "QueryStatistics":
        """Of queries [query_heads, tokens, head_dim]."""
        queries = queries.float()
        products = queries.transpose(1, 2) @ queries
        return cls(queries.shape[1], queries.sum(dim=1).double(), products.double())

    def __add__(self, other: "QueryStatistics") -> "QueryStatistics":
        return QueryStatistics(self.count + other.count, self.total + other.total, self.products + other.products)

    @property
    def mean(self) -> Tensor:
        """[query_heads, head_dim]."""
        return self.total / self.count

    @property
    def covariance(self) -> Tensor:
        """[query_heads, head_dim, head_dim]."""
        mean = self.mean
        return self.products / self.count - mean[:, :, None] * mean[:, None, :]


@dataclass(frozen=True)
class LayerObservation:
    """The queries of a layer's observation window [query_heads, window, head_dim], after RoPE, and its scaling.

    softcap: the layer caps its attention logits by `softcap * tanh(logits / softcap)`; None when it does not. output:
    the projection of the heads' outputs [hidden, query_heads, value_dim], None where it was not found. importance
    [kv_heads, entries]: of a reconstruction, what the repeated text looked at. statistics: of all queries of the
    prefill. sums [kv_heads, positions]: the attention that every position was given. The last three are None where
    nobody asked for them.
    """

    queries: Tensor
    scaling: float
    softcap: float | None = None
    output: Tensor | None = None
    importance: Tensor | None = None
    statistics: QueryStatistics | None = None
    sums: Tensor | None = None

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

    def of(self, layer: int) -> LayerObservation:
        """The window of one layer."""
        return self.layers[layer]
