"""The observation that KVzip chooses by: the model reads its own context again, after a request to repeat it.

Kim et al., https://arxiv.org/abs/2505.23416: the text is repeated in chunks, and an entry is worth the largest
attention weight that a repeated token gives it, over the query heads of its group.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kv_compression.kv_cache import KVCache
from kv_compression.observation import LayerObservation, Observation
from kv_compression.transformers_adapter import forward, recording

SINKS = 4
BLOCK = 256  # queries whose weights are in memory at once
OVERLAP = 8  # tokens of the chunk before that a request to go on repeats


def reconstruct(
    model: PreTrainedModel,
    cache: KVCache,
    token_ids: Sequence[int],
    request: Sequence[int],
    go_on: Sequence[int],
    *,
    chunk: int = 2048,
) -> Observation:
    """Of a cache that holds all of `token_ids` and nothing else; it is not changed.

    request: tokens that ask to repeat the text. go_on: tokens that ask to go on repeating, behind which the last tokens
    of the chunk before are put. ValueError when the cache does not hold just these tokens.
    """
    if cache.length != len(token_ids) or cache.entries != len(token_ids):
        raise ValueError("the cache must hold every entry of these tokens, and no others")
    recorder = _Weights(len(token_ids))
    for start in range(0, len(token_ids), chunk):
        part = list(token_ids[start : start + chunk])
        asked = [*go_on, *token_ids[start - OVERLAP : start]] if start else list(request)
        recorder.begin(start, start + len(part))
        with recording(recorder):
            forward(model, cache.copy(room=len(asked) + len(part)), [*asked, *part])
    return Observation(recorder.layers, len(token_ids), len(token_ids), cache.length)


class _Weights:
    """Collects, for the entries of one chunk at a time, the largest weight that a later token gives them."""

    def __init__(self, entries: int) -> None:
        self.layers: dict[int, LayerObservation] = {}
        self._entries = entries
        self._start = self._stop = 0

    def begin(self, start: int, stop: int) -> None:
        """The next forwards repeat the tokens from `start` to `stop`."""
        self._start, self._stop = start, stop

    def record(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> None:
        """As in the paper, the weights are shares of the chunk, the sinks and the repeated tokens, not of everything.

        Layers with a sliding window are passed over: nothing is chosen from them.
        """
        heads, rows = key.shape[1], key.shape[2]
        if rows != self._entries + query.shape[2]:
            return
        sinks = range(min(SINKS, self._start))
        seen = torch.tensor([*sinks, *range(self._start, self._stop), *range(self._entries, rows)], device=key.device)
        keys = key[0, :, seen].float()
        weights = torch.stack(
            [
                _largest(queries.float(), of_head, scaling, softcap)
                for queries, of_head in zip(query[0].chunk(heads), keys, strict=True)
            ]
        )
        observed = self.layers.setdefault(
            layer, LayerObservation(query[0, :, :0], scaling, softcap, weights.new_zeros(heads, self._entries))
        )
        assert observed.importance is not None
        observed.importance[:, self._start : self._stop] = weights[
            :, len(sinks) : len(sinks) + self._stop - self._start
        ]


def _largest(queries: Tensor, keys: Tensor, scaling: float, softcap: float | None) -> Tensor:
    """[entries]: the largest weight over a group's queries [group, tokens, head_dim]; the last keys are their own."""
    tokens, entries = queries.shape[1], keys.shape[0]
    largest = queries.new_zeros(entries)
    for first in range(0, tokens, BLOCK):
        logits = (queries[:, first : first + BLOCK] * scaling) @ keys.T
        if softcap is not None:
            logits = (logits / softcap).tanh() * softcap
        at = torch.arange(first, first + logits.shape[1], device=keys.device)[:, None] + entries - tokens
        logits.masked_fill_(torch.arange(entries, device=keys.device) > at, -torch.inf)
        largest = torch.maximum(largest, logits.softmax(dim=-1).amax(dim=(0, 1)))
    return largest
