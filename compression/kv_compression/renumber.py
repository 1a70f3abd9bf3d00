"""Positions without end: what a cache keeps is numbered anew, so that a sequence can outgrow the model's context.

Positions matter to rotary embeddings only by their distances, and dropped entries leave gaps. StreamingLLM (Xiao et al.
2023, https://arxiv.org/abs/2309.17453) closes these gaps; here for any choice of entries, head by head.
"""

import torch
from transformers import PreTrainedModel

from kv_compression.adapter import rotation_of
from kv_compression.cache import HeadEntries, LayerEntries
from kv_compression.kv_cache import KVCache
from kv_compression.rotation import Rotation


@torch.no_grad()
def renumbered(model: PreTrainedModel, cache: KVCache, *, room: int = 0) -> KVCache:
    """A new cache of the same entries without gaps between them, with room for `room` more tokens.

    With L the largest number of entries of any head, entry i of a head's c gets the position L - c + i, and its key is
    turned there: late entries keep their distances from what comes next, older ones move nearer. `length` becomes L,
    so the head that an allocation gives most decides how soon the next time is. Layers with a sliding window have no
    gaps and move as a whole. `cache` is untouched; observations and segments of it do not fit the new one.

    Keys are turned in float32 and rounded to the cache's type. Raises UnsupportedModelError for a model whose rotation
    is not known.
    """
    rotation = rotation_of(model)
    length = max(layer.buffer.longest for layer in cache.layers)
    closed = KVCache(cache.config, device=cache.device, dtype=cache.dtype)
    for index, (layer, target) in enumerate(zip(cache.layers, closed.layers, strict=True)):
        if (entries := layer.buffer.entries) is not None:
            target.buffer.append(_close_gaps(entries, length, rotation, index), room=room)
        target.length = length
    return closed


def _close_gaps(entries: LayerEntries, length: int, rotation: Rotation, layer: int) -> LayerEntries:
    """A copy whose positions in every head are the last before `length`."""
    moved = []
    for head in entries:
        count = len(head.positions)
        positions = torch.arange(length - count, length, dtype=torch.int32, device=head.positions.device)
        keys = rotation.turn(layer, head.keys, positions - head.positions).to(head.keys.dtype)
        moved.append([HeadEntries(keys, head.values, positions)])
    return LayerEntries.join(moved)
