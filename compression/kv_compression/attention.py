"""Attention of new tokens to a layer's entries. A KV head is never repeated in memory for its query heads."""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kv_compression.cache import LayerEntries


@lru_cache(maxsize=2)  # the layers with and those without a sliding window share one each, pass by pass
def causal_mask(tokens: int, entries: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[tokens, entries], 0 where a token looks and -inf elsewhere. The new tokens are the last entries.

    A token looks at all that came before it and at itself; with a `window`, at so many entries in all.
    """
    mask = torch.zeros(tokens, entries, dtype=dtype, device=device)
    ahead = torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)
    mask[:, entries - tokens :].masked_fill_(ahead, -torch.inf)
    if window is not None:
        behind = torch.ones(tokens, entries, dtype=torch.bool, device=device).tril(entries - tokens - window)
        mask.masked_fill_(behind, -torch.inf)
    return mask


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, softcap: float | None
) -> Tensor:
    """[batch, query_heads, tokens, value_dim].

    query [batch, query_heads, tokens, head_dim], key and value [batch, kv_heads, entries, dim], mask [tokens, entries].
    `causal` (without a mask): as many entries as tokens, and the causal mask.
    """
    if softcap is not None:
        if causal:
            mask = causal_mask(query.shape[2], key.shape[2], None, query.dtype, query.device)
        return _softcapped(query, key, value, mask, scale, softcap)
    if query.shape[2] == 1 and mask is None:  # a group's keys and values are read once, not once per query head
        return attend_packed(query, key, value, None, scale)
    if mask is None or query.device.type == "cpu":
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True
        )
    return attend_packed(query, key, value, mask, scale)


def mask_of(query: Tensor, entries: int, sliding_window: int | None) -> tuple[Tensor | None, bool]:
    """The `mask` and `causal` of `attend` for queries [batch, query_heads, tokens, head_dim], the last of so many."""
    tokens = query.shape[2]
    window = None if sliding_window is None or entries <= sliding_window else sliding_window
    causal = window is None and tokens == entries > 1
    seen_by_all = causal or (tokens == 1 and window is None)
    return None if seen_by_all else causal_mask(tokens, entries, window, query.dtype, query.device), causal


def attend_entries(
    query: Tensor, entries: LayerEntries, scale: float, softcap: float | None, sliding_window: int | None
) -> Tensor:
    """[1, query_heads, tokens, value_dim] of one sequence's new tokens, which are the last entries of every head."""
    dense = entries.dense()
    if dense is None:  # never with a sliding window: such layers are not compressed
        return attend_ragged(query, entries, scale, softcap)
    mask, causal = mask_of(query, dense.keys.shape[1], sliding_window)
    return attend(query, dense.keys[None], dense.values[None], mask, causal, scale, softcap)


def attend_ragged(query: Tensor, entries: LayerEntries, scale: float, softcap: float | None) -> Tensor:
    """[1, query_heads, tokens, value_dim], to heads that hold different numbers of entries, one KV head at a time.

    query [1, query_heads, tokens, head_dim]; its tokens are the last entries of every head.
    """
    tokens, group = query.shape[2], query.shape[1] // len(entries.counts)
    longest = causal_mask(tokens, max(entries.counts), None, query.dtype, query.device) if tokens > 1 else None
    outputs = []
    for head, queries, count in zip(entries, query.split(group, dim=1), entries.counts, strict=True):
        mask = None if longest is None else longest[:, -count:]
        outputs.append(attend(queries, head.keys[None, None], head.values[None, None], mask, False, scale, softcap))
    return torch.cat(outputs, dim=1)


def attend_packed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """`attend` with a group's query heads as rows of one head: CUDA's fused kernels take no mask with grouped heads."""
    batch, query_heads, tokens, head_dim = query.shape
    group = query_heads // key.shape[1]
    rows = query.reshape(batch, -1, group * tokens, head_dim)  # [batch, kv_heads, group * tokens, head_dim]
    mask = None if mask is None else mask.repeat(group, 1)
    output = scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scale)
    return output.reshape(batch, query_heads, tokens, -1)


def _softcapped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float) -> Tensor:
    """No fused kernel caps its logits: written out, with the logits of one call in memory."""
    batch, _, tokens, head_dim = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, tokens, head_dim)  # [batch, kv_heads, group, tokens, head_dim]
    logits = (grouped @ key[:, :, None].transpose(3, 4)) * (scale / softcap)
    logits = logits.tanh() * softcap
    if mask is not None:
        logits = logits + mask
    weights = logits.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    return (weights @ value[:, :, None]).flatten(1, 2)
