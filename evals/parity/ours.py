"""What this project chooses, in the form of the oracle's result."""

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from evals.parity.cases import Case
from evals.parity.compare import Choice
from evals.parity.peers import CHUNK
from kv_compression import KVCache, KVzip, Observation, Policy, Prefill, reconstruct


@torch.inference_mode()
def choices(model: PreTrainedModel, case: Case, policies: Mapping[str, Policy]) -> dict[str, Choice]:
    """By every policy, from one prefill in chunks of the usual size."""
    cache = KVCache(model.config, device=model.device, dtype=model.dtype)
    observe = {part for policy in policies.values() for part in policy.observe}
    run = Prefill(model, cache, case.text, window=max(policy.window for policy in policies.values()), observe=observe)
    while not run.step():
        pass
    repeated = reconstruct(model, cache, case.text, case.request, case.go_on, chunk=CHUNK)
    return {
        name: _choice(cache, policy, repeated if isinstance(policy, KVzip) else run.observation)
        for name, policy in policies.items()
    }


def _choice(cache: KVCache, policy: Policy, observation: Observation) -> Choice:
    held, chosen = cache.segment(0), cache.select(policy, observation).segment(0)
    scores = [
        torch.stack(policy.protected_score(entries, observation.of(layer))) for layer, entries in enumerate(held.layers)
    ]
    positions = torch.arange(cache.length)
    kept = [torch.stack([torch.isin(positions, head.positions) for head in stay]) for stay in chosen.layers]
    return Choice(torch.stack(scores).numpy(), torch.stack(kept).numpy())
