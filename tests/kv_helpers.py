"""What several tests of the caches need: tokens, an empty cache, a prefill that runs to its end, a layer's entries."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from kv_compression import KVCache, LayerEntries, Prefill, attach

SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
"""Of a tiny model with sliding windows around its layer with full attention."""

ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None, "num_local_experts": 2},
    "gemma": {"num_key_value_heads": 1},
    "gemma2": {**SLIDING, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8},
    "gemma3_text": SLIDING,
    "phi3": {"sliding_window": None},
    "granite": {"attention_multiplier": 0.3},
    "olmo2": {},
    "cohere2": SLIDING,
    "gpt_neox": {},
    "glm4": {},
    "smollm3": {},
    "starcoder2": {"sliding_window": None},
    "apertus": {},
    "arcee": {},
    "bitnet": {},
    "cohere": {},
    "ernie4_5": {},
    "exaone4": SLIDING,
    "glm": {},
    "gpt2": {"num_key_value_heads": 4},
    "gpt_bigcode": {"num_key_value_heads": 1},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "helium": {},
    "hunyuan_v1_dense": {},
    "ministral3": {"sliding_window": None},
    "modernbert-decoder": SLIDING,
    "nanochat": {},
    "nemotron": {},
    "olmo": {},
    "olmo3": SLIDING,
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "opt": {},
    "persimmon": {},
    "phi": {},
    "seed_oss": {},
    "stablelm": {},
    "vaultgemma": SLIDING,
    "biogpt": {"num_key_value_heads": 4},
    "jais2": {},
    "lfm2": {},
    "phimoe": {},
}
"""Model types that the library takes, with what makes a tiny model of each one."""


def random_tokens(count: int, seed: int = 0) -> list[int]:
    """Of a tiny model's vocabulary, without its special tokens; the same every time."""
    return torch.randint(3, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def empty_cache(model: PreTrainedModel) -> KVCache:
    """On the CPU, in float32."""
    return KVCache(model.config, device="cpu", dtype=torch.float32)


def run_prefill(
    model: PreTrainedModel, cache: KVCache, token_ids: Sequence[int], chunk: int, **options: object
) -> Prefill:
    """All of it, on a model that is attached if it was not."""
    attach(model)
    run = Prefill(model, cache, token_ids, chunk=chunk, **options)  # type: ignore[arg-type]
    while not run.step():
        pass
    return run


def entries_of(cache: KVCache, layer: int) -> LayerEntries:
    """What a layer holds, which is not nothing."""
    entries = cache.layers[layer].buffer.entries
    assert entries is not None
    return entries
