"""Head profiles: which share of a budget every KV head needs, measured once per model.

Heads differ far more than positions do. The measure: let KVzip keep the best entries of sample texts over all heads of
all layers, and count what every head was given.
"""

from collections.abc import Iterable, Sequence

import torch
from transformers import PreTrainedModel

from kv_compression.allocation import Profile
from kv_compression.kv_cache import KVCache
from kv_compression.policies import KVzip
from kv_compression.prefill import Prefill
from kv_compression.reconstruction import reconstruct


def measure_profile(
    model: PreTrainedModel,
    texts: Iterable[Sequence[int]],
    request: Sequence[int],
    go_on: Sequence[int],
    *,
    budget: int,
) -> Profile:
    """The mean over the texts of each head's share, relative to the mean head, at `budget` positions per head.

    texts: token ids, each text longer than the budget. request, go_on: as for `reconstruct`.
    """
    shares = torch.stack([_shares(model, list(text), request, go_on, budget) for text in texts]).mean(dim=0)
    return Profile(tuple(tuple(round(share, 4) for share in layer) for layer in shares.tolist()))


@torch.inference_mode()
def _shares(
    model: PreTrainedModel, text: list[int], request: Sequence[int], go_on: Sequence[int], budget: int
) -> torch.Tensor:
    """[layers, kv_heads]."""
    if len(text) <= budget:
        raise ValueError(f"a text of {len(text)} tokens says nothing about a budget of {budget}")
    cache = KVCache(model.config, device=model.device, dtype=model.dtype)
    run = Prefill(model, cache, text)
    while not run.step():
        pass
    kept = cache.select(KVzip(budget), reconstruct(model, cache, text, request, go_on))
    counts = torch.tensor([layer.buffer.counts for layer in kept.layers], dtype=torch.float64)
    return counts / counts.mean()
