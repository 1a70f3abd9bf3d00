"""Head profiles: which share of a budget every KV head needs, measured once per model.

Heads differ far more than positions do. The measure: let KVzip keep the best entries of sample texts over all heads of
all layers, and count what every head was given.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kv_compression.allocation import Profile
from kv_compression.kv_cache import KVCache
from kv_compression.policies import KVzip
from kv_compression.prefill import Prefill
from kv_compression.reconstruction import reconstruct


def measure_profiles(
    model: PreTrainedModel,
    texts: Iterable[Sequence[int]],
    request: Sequence[int],
    go_on: Sequence[int],
    *,
    budgets: Sequence[int],
) -> dict[int, Profile]:
    """Budget, in positions per head -> the mean over the texts of each head's share, relative to the mean head.

    Every text is read once for all budgets. texts: token ids, each text longer than the budgets. request, go_on: as for
    `reconstruct`.
    """
    measured = [_shares(model, list(text), request, go_on, budgets) for text in texts]
    return {budget: _profile([shares[budget] for shares in measured]) for budget in budgets}


@torch.inference_mode()
def _shares(
    model: PreTrainedModel, text: list[int], request: Sequence[int], go_on: Sequence[int], budgets: Sequence[int]
) -> dict[int, Tensor]:
    """Budget -> [layers, kv_heads]."""
    if len(text) <= max(budgets):
        raise ValueError(f"a text of {len(text)} tokens says nothing about a budget of {max(budgets)}")
    cache = KVCache(model.config, device=model.device, dtype=model.dtype)
    run = Prefill(model, cache, text)
    while not run.step():
        pass
    repeated = reconstruct(model, cache, text, request, go_on)
    kept = {budget: cache.select(KVzip(budget), repeated) for budget in budgets}
    counts = {
        budget: torch.tensor([layer.buffer.counts for layer in selected.layers], dtype=torch.float64)
        for budget, selected in kept.items()
    }
    return {budget: of_heads / of_heads.mean() for budget, of_heads in counts.items()}


def _profile(shares: Sequence[Tensor]) -> Profile:
    mean = torch.stack(list(shares)).mean(dim=0)
    return Profile(tuple(tuple(round(share, 4) for share in layer) for layer in mean.tolist()))
