"""Caches of random keys and values, at any length: a step of decoding costs the same whatever they are."""

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from evals.kv_runs import Runner
from kv_compression import KVCache, LayerEntries, Segment

TOKEN = 7  # any one


def random_cache(runner: Runner, tokens: int, room: int = 1) -> KVCache:
    """Of that many tokens, with random keys and values of the model's shapes."""
    probe = runner.cache()
    runner.prefill(probe, [TOKEN])
    layers = []
    for layer in probe.segment(0).layers:
        heads, head_dim, value_dim = layer.dims
        keys, values = torch.randn(heads, tokens, head_dim), torch.randn(heads, tokens, value_dim)
        layers.append(LayerEntries.stack(keys, values, torch.arange(tokens, dtype=torch.int32).repeat(heads, 1)))
    model = runner.model
    return KVCache.from_segments(
        model.config, [Segment(0, tokens, layers)], device=model.device, dtype=model.dtype, room=room
    )


def as_dynamic(caches: Sequence[KVCache]) -> DynamicCache:
    """Whole caches of one length as one batch in transformers' own cache."""
    dynamic = DynamicCache()
    for index in range(len(caches[0].layers)):
        held = [cache.layers[index].buffer.entries for cache in caches]
        dense = [head for entries in held if entries is not None and (head := entries.dense()) is not None]
        assert len(dense) == len(caches), "every head holds every token"
        keys, values = torch.stack([of.keys for of in dense]), torch.stack([of.values for of in dense])
        dynamic.update(keys, values, index)
    return dynamic
