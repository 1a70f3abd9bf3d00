"""Attention weights, written out: for the policies that look at them. Never those of a whole prompt at once."""

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 256
"""Queries whose weights are in memory at once."""


def attention_weights(queries: Tensor, keys: Tensor, scaling: float, softcap: float | None) -> Tensor:
    """[group, tokens, entries], float32. The queries [group, tokens, head_dim] belong to the last entries, one each,
    and see nothing behind their own; keys [entries, head_dim]."""
    tokens = queries.shape[1]
    (weights,) = weights_in_blocks(queries, keys, scaling, softcap, block=tokens)
    return weights


def weights_in_blocks(
    queries: Tensor, keys: Tensor, scaling: float, softcap: float | None, *, block: int = BLOCK
) -> Iterator[Tensor]:
    """The same in blocks of so many queries."""
    tokens, entries = queries.shape[1], keys.shape[0]
    keys = keys.float()
    for first in range(0, tokens, block):
        logits = (queries[:, first : first + block].float() * scaling) @ keys.T
        if softcap is not None:
            logits = (logits / softcap).tanh() * softcap
        rows = logits.shape[1]
        start = entries - tokens + first  # the entry of the block's first query
        ahead = torch.ones(rows, entries - start, dtype=torch.bool, device=keys.device).triu(1)
        logits[..., start:].masked_fill_(ahead, -torch.inf)
        yield logits.softmax(dim=-1)
