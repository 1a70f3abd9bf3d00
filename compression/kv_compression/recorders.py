"""Recorders: what of a running model is kept for the policies. Each sees every layer's attention, call by call."""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation, QueryStatistics
from kv_compression.rotation import Rotation
from kv_compression.weights import weights_in_blocks

SINKS = 4


@dataclass(frozen=True)
class AttentionCall:
    """New tokens attend to a layer's entries, of which they are the last.

    queries: [query_heads, tokens, head_dim], after RoPE. sliding_window: None where attention is full. output: the
    projection of the heads' outputs [hidden, query_heads, value_dim], None where it was not found.
    """

    layer: int
    queries: Tensor
    entries: LayerEntries
    scaling: float
    softcap: float | None
    sliding_window: int | None
    output: Tensor | None

    @property
    def groups(self) -> tuple[Tensor, ...]:
        """For every KV head the queries of its group, [group, tokens, head_dim]."""
        return self.queries.chunk(len(self.entries.counts))


class Recorder(Protocol):
    """Keeps something of what it sees."""

    def record(self, call: AttentionCall) -> None:
        """Called by every layer for every forward. What the call holds is only there during the call."""


class QueryRecorder:
    """Keeps the last `window` queries of every layer, whichever chunks they come in."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.layers: dict[int, LayerObservation] = {}

    def record(self, call: AttentionCall) -> None:
        """Copy the queries."""
        new = call.queries[:, -self.window :]
        if call.layer in self.layers and new.shape[1] < self.window:
            new = torch.cat([self.layers[call.layer].queries, new], dim=1)[:, -self.window :]
        queries = new.clone()  # a copy: the chunk's queries are freed
        self.layers[call.layer] = LayerObservation(queries, call.scaling, call.softcap, output=call.output)


@dataclass
class StatisticsRecorder:
    """Keeps the mean and the covariance of the queries of layers with full attention, turned back to position 0.

    The queries of the sequence's first tokens are left out: they are like no others.
    """

    rotation: Rotation
    layers: dict[int, QueryStatistics] = field(default_factory=dict)

    def record(self, call: AttentionCall) -> None:
        """Add the queries of the new tokens."""
        if call.sliding_window is not None:
            return
        tokens = call.queries.shape[1]
        positions = next(iter(call.entries)).positions[-tokens:]
        after_sinks = int((positions >= SINKS).sum())
        if after_sinks == 0:
            return
        queries, positions = call.queries[:, -after_sinks:], positions[-after_sinks:]
        turned = self.rotation.turn(call.layer, queries, -positions)
        new = QueryStatistics.of(turned, self.rotation.forms[call.layer], int(positions[-1]) + 1)
        self.layers[call.layer] = self.layers[call.layer] + new if call.layer in self.layers else new


@dataclass
class SumRecorder:
    """Sums the weights that every entry of layers with full attention is given, over all tokens and query heads.

    The sums lie at the entries' positions, [kv_heads, positions], so that they outlive any choice of entries.
    """

    layers: dict[int, Tensor] = field(default_factory=dict)

    def record(self, call: AttentionCall) -> None:
        """Add the weights of the new tokens, in blocks of queries."""
        if call.sliding_window is not None:
            return
        length = max(int(head.positions[-1]) for head in call.entries) + 1
        sums = self._room(call, length)
        for of_head, queries, head in zip(sums, call.groups, call.entries, strict=True):
            for weights in weights_in_blocks(queries, head.keys, call.scaling, call.softcap):
                of_head.index_add_(0, head.positions.long(), weights.sum(dim=(0, 1)))

    def _room(self, call: AttentionCall, length: int) -> Tensor:
        """The sums so far, with zeros up to `length`; grown by half, so that decoding seldom copies."""
        sums = self.layers.get(call.layer)
        if sums is None or sums.shape[1] < length:
            grown = torch.zeros(len(call.entries.counts), length + length // 2, device=call.queries.device)
            if sums is not None:
                grown[:, : sums.shape[1]] = sums
            self.layers[call.layer] = sums = grown
        return sums
