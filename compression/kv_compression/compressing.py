"""One call from a prompt to the cache that transformers' `generate` goes on from."""

from torch import Tensor
from transformers import PreTrainedModel

from kv_compression.kv_cache import KVCache
from kv_compression.policies.base import Policy
from kv_compression.prefill import Prefill


def compress(model: PreTrainedModel, input_ids: Tensor, policy: Policy, cache: KVCache | None = None) -> KVCache:
    """A cache with what the policy keeps of all tokens but the last, which `generate` runs itself.

    model: attached. input_ids: [1, tokens]; give the same to `model.generate(input_ids, cache=...)`. The policy's
    window ends at the token before the last, so a question at the end of the prompt votes.

    For a later turn, `cache` is the one that the turn before was generated on, and `input_ids` are all tokens so far,
    those of the new turn at the end; only what the cache does not hold is prefilled, into it. ValueError for more than
    one sequence, when no token but the last is left to prefill, and when the policy needs more than a prefill (KVzip).
    """
    if input_ids.ndim != 2 or input_ids.shape[0] != 1:
        raise ValueError(f"input_ids must have the shape [1, tokens], not {list(input_ids.shape)}")
    if cache is None:
        cache = KVCache(model.config, device=model.device, dtype=model.dtype)
    new = input_ids[0, cache.length : -1].tolist()
    if not new:
        raise ValueError(f"the cache holds {cache.length} of {input_ids.shape[1]} tokens: at least two more are needed")
    run = Prefill(model, cache, new, window=max(policy.window, 1), observe=policy.observe)
    while not run.step():
        pass
    return cache.select(policy, run.observation)
