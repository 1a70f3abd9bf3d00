"""The adapter: which models it takes, what an attached model still does by itself, and what it refuses."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DynamicCache,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from kv_compression import KVCache, Prefill, SnapKV, UnsupportedModelError, attach, decode_step
from kv_compression.adapter import sliding_windows
from kv_compression.attention import attend_packed, causal_mask

MLA = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("deepseek_v3", {**MLA, "num_key_value_heads": 4}, "MLA"),
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "s_aux"),
        ("llama4_text", {"layer_types": ["chunked_attention"] * 3, "num_local_experts": 2}, "chunked_attention"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "causal mask"),
        ("lfm2", {"layer_types": ["conv", "full_attention", "conv"]}, "'conv'"),
    ],
)
def test_models_that_cannot_work_are_refused(
    model_type: str, changes: dict[str, object], reason: str, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    model = tiny_model(model_type, **changes)
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedModelError, match=reason):
        attach(model)
    assert model.config._attn_implementation == before


def test_a_model_without_the_attention_interface_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="attention interface"):
        attach(BloomForCausalLM(BloomConfig(vocab_size=96, hidden_size=32, n_layer=1, n_head=2)))


def test_an_encoder_decoder_is_refused() -> None:
    config = T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        attach(T5ForConditionalGeneration(config))


def test_attaching_twice_changes_nothing(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model()
    attach(model)
    attach(model)
    assert model.config._attn_implementation == "kv_compression"


def test_sliding_windows_come_from_the_config(tiny_model: Callable[..., PreTrainedModel]) -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = tiny_model("gemma3_text", sliding_window=16, layer_types=kinds).config
    assert sliding_windows(config) == [16, None, 16]


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma3_text"])
def test_an_attached_model_generates_as_before(model_type: str, tiny_model: Callable[..., PreTrainedModel]) -> None:
    """With transformers' own caches: one sequence, and a batch without padding."""
    model = tiny_model(model_type, **({} if model_type == "llama" else {"sliding_window": 16}))
    prompts = torch.randint(3, 96, (2, 40), generator=torch.Generator().manual_seed(0))
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    expected = model.generate(prompts, **settings)
    attach(model)
    assert torch.equal(model.generate(prompts, **settings), expected)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        for piece in prompts[:1].split(13, dim=1):
            logits = model(piece, cache=cache).logits
    assert int(logits[0, -1].argmax()) == int(expected[0, 40])


def test_generate_runs_on_a_compressed_cache(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model()
    attach(model)
    prompt = torch.randint(3, 96, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    cache = KVCache(model.config, device="cpu", dtype=torch.float32)
    run = Prefill(model, cache, prompt[:-1], window=6)
    run.step()
    policy = SnapKV(24, 6)
    working = cache.select(policy, run.observation)
    generated = model.generate(
        torch.tensor([prompt]), cache=working, max_new_tokens=10, do_sample=False, eos_token_id=None
    )
    working, answer, token = cache.select(policy, run.observation), [], prompt[-1]
    for _ in range(10):
        token = int(decode_step(model, working, token).argmax())
        answer.append(token)
    assert generated[0, 60:].tolist() == answer


def test_what_the_masks_cannot_express_is_refused(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model()
    attach(model)
    ids = torch.full((2, 8), 5)
    padding = torch.ones_like(ids)
    padding[0, :3] = 0
    with pytest.raises(ValueError, match="padded batches"):
        model(ids, attention_mask=padding)
    with pytest.raises(ValueError, match="static caches"):
        model.generate(ids[:1], max_new_tokens=3, cache_implementation="static")
    with pytest.raises(ValueError, match="one sequence"):
        model(ids, cache=KVCache(model.config, device="cpu", dtype=torch.float32))


@pytest.mark.parametrize("window", [None, 7])
def test_packed_heads_attend_like_repeated_ones(window: int | None) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 6, 5, 8), torch.randn(1, 2, 20, 8), torch.randn(1, 2, 20, 4)
    mask = causal_mask(5, 20, window, query.dtype, query.device)
    repeated = [tensor.repeat_interleave(3, dim=1) for tensor in (key, value)]
    expected = scaled_dot_product_attention(query, *repeated, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(attend_packed(query, key, value, mask, 0.3), expected)


def test_attention_that_looks_ahead_is_refused(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model()
    attach(model)
    model.model.layers[1].self_attn.is_causal = False
    with pytest.raises(UnsupportedModelError, match="what comes after"):
        model(torch.full((1, 8), 5))
