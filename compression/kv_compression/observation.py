"""What running the model leaves behind for the policies, layer by layer."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LayerObservation:
    """The queries of a layer's observation window [query_heads, window, head_dim], after RoPE, and its scaling.

    `softcap`: the layer caps its attention logits by `softcap * tanh(logits / softcap)`; None when it does not.
    `importance` [kv_heads, entries]: of a reconstruction, what the repeated text looked at; None after a prefill.
    """

    queries: Tensor
    scaling: float
    softcap: float | None = None
    importance: Tensor | None = None

    @property
    def window(self) -> int:
        """Tokens in the window."""
        return self.queries.shape[1]

    def last(self, window: int) -> "LayerObservation":
        """Of the last `window` tokens only."""
        return LayerObservation(self.queries[:, -window:], self.scaling, self.softcap, self.importance)


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
