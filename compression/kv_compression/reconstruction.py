"""The observation that KVzip chooses by: the model reads its own context again, after a request to repeat it.

Kim et al., https://arxiv.org/abs/2505.23416: the text is repeated in chunks, and an entry is worth the largest
attention weight that a repeated token gives it, over the query heads of its group.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kv_compression.adapter import forward, recording
from kv_compression.kv_cache import KVCache
from kv_compression.observation import LayerObservation, Observation
from kv_compression.recorders import AttentionCall
from kv_compression.weights import weights_in_blocks

SINKS = 4
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
        with recording([recorder]):
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

    def record(self, call: AttentionCall) -> None:
        """As in the paper, the weights are shares of the chunk, the sinks and the repeated tokens, not of everything.

        Layers with a sliding window are passed over: nothing is chosen from them.
        """
        rows = self._entries + call.queries.shape[1]
        if call.sliding_window is not None:
            return
        sinks = range(min(SINKS, self._start))
        seen = torch.tensor([*sinks, *range(self._start, self._stop), *range(self._entries, rows)])
        largest = torch.stack(
            [
                _largest(queries, head.keys[seen.to(head.keys.device)], call)
                for queries, head in zip(call.groups, call.entries, strict=True)
            ]
        )
        importance = self._importance(call)
        of_chunk = slice(len(sinks), len(sinks) + self._stop - self._start)
        importance[:, self._start : self._stop] = largest[:, of_chunk]

    def _importance(self, call: AttentionCall) -> Tensor:
        """[kv_heads, entries], of the call's layer."""
        if call.layer not in self.layers:
            importance = call.queries.new_zeros(len(call.entries.counts), self._entries, dtype=torch.float32)
            seen = LayerObservation(call.queries[:, :0], call.scaling, call.softcap, call.output, importance)
            self.layers[call.layer] = seen
        found = self.layers[call.layer].importance
        assert found is not None
        return found


def _largest(queries: Tensor, keys: Tensor, call: AttentionCall) -> Tensor:
    """[entries]: the largest weight over a group's queries [group, tokens, head_dim]; the last keys are their own."""
    largest = queries.new_zeros(keys.shape[0], dtype=torch.float32)
    for weights in weights_in_blocks(queries, keys, call.scaling, call.softcap):
        largest = torch.maximum(largest, weights.amax(dim=(0, 1)))
    return largest
