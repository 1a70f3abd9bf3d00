"""The prefill layer by layer against the prefill of the whole model and a choice at its end."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from kv_compression import (
    H2O,
    Blend,
    CriticalKV,
    ExpectedAttention,
    FastGen,
    Full,
    HeadAdaptive,
    KVCache,
    LayerwisePrefill,
    Observer,
    Policy,
    Prefill,
    Profile,
    Pyramid,
    SnapKV,
    StreamingLLM,
    attach,
    decode_step,
)
from tests.kv_helpers import ARCHITECTURES, empty_cache, random_tokens

PROFILE = Profile(((0.4, 2.2), (1.6, 0.3), (0.5, 1.0)))
MODELS = ("llama", "qwen3", "mixtral", "gemma2", "gemma3_text", "cohere2", "gpt_neox", "granite")
POLICIES: dict[str, Policy] = {
    "full": Full(),
    "snapkv": SnapKV(24, window=6, kernel=5),
    "by a profile": SnapKV(24, window=6, kernel=5, allocation=PROFILE),
    "pyramid": SnapKV(24, window=6, kernel=5, allocation=Pyramid(4)),
    "adaptive": SnapKV(24, window=6, kernel=5, allocation=HeadAdaptive()),
    "streaming_llm": StreamingLLM(24),
    "h2o": H2O(24, allocation=PROFILE),
    "expected_attention": ExpectedAttention(24, allocation=PROFILE),
    "criticalkv": CriticalKV(SnapKV(24, window=6, kernel=5, allocation=PROFILE)),
    "blend": Blend(SnapKV(24, window=6, kernel=5, allocation=PROFILE), ExpectedAttention(24)),
    "fastgen": FastGen(special=(5, 6), punctuation=(7, 8), recovery=0.5, frequent=0.2, local=0.1, window=6),
}
CASES = [
    *(("llama", policy) for policy in POLICIES),
    *((model, "pyramid" if model == "gpt_neox" else "by a profile") for model in MODELS if model != "llama"),
]


def _same(one: KVCache, other: KVCache) -> None:
    assert one.length == other.length
    for here, there in zip(one.segment(0).layers, other.segment(0).layers, strict=True):
        assert here.counts == there.counts
        for left, right in zip(here, there, strict=True):
            assert torch.equal(left.positions, right.positions)
            torch.testing.assert_close(left.keys, right.keys, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(left.values, right.values, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "policy_name"), CASES)
def test_it_keeps_the_same(name: str, policy_name: str, tiny_model: Callable[..., PreTrainedModel]) -> None:
    """In two turns, the second on what the first kept."""
    model, policy = tiny_model(name, **ARCHITECTURES[name]), POLICIES[policy_name]
    attach(model)
    before = dict(model.named_modules())
    expected, kept = empty_cache(model), None
    observers: list[Observer | None] = [None, None]  # of what is summed up over the turns, else of each turn
    for turn, count in enumerate((60, 17)):
        observed = {"window": max(policy.window, 1), "observe": policy.observe, "observer": observers[0]}
        run = Prefill(model, expected, random_tokens(count, turn), **observed)
        run.step()
        expected = expected.select(policy, run.observation)
        by_layer = LayerwisePrefill(
            model, random_tokens(count, turn), policy, start=kept, chunk=13 + turn, observer=observers[1]
        )
        while not by_layer.step():
            pass
        kept = by_layer.cache
        observers = [run.observer, by_layer.observer] if "sums" in policy.observe else [None, None]
        _same(kept, expected)
        torch.testing.assert_close(by_layer.logits, run.logits, atol=1e-4, rtol=1e-3)
        logits = decode_step(model, kept, 9, by_layer.observer), decode_step(model, expected, 9, run.observer)
        torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-3)
    assert dict(model.named_modules()) == before


def test_one_layer_is_whole_at_a_time(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("llama")
    attach(model)
    run = LayerwisePrefill(model, random_tokens(200, 0), SnapKV(24, window=6), chunk=20)
    held = 0.0
    finished = False
    while not finished:
        finished = run.step()
        counts = [layer.buffer.counts for layer in run._cache.layers if layer.buffer.counts]
        assert sum(max(of_layer) > 24 for of_layer in counts) <= 1
        held = max(held, max(max(of_layer) for of_layer in counts))
    assert held == 180, "of the last chunk the policy chooses at once"
    with pytest.raises(RuntimeError, match="finished"):
        run.step()


def test_what_cannot_be_chosen_by_layer_is_refused(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("llama")
    attach(model)
    with pytest.raises(ValueError, match="compares the scores of all layers"):
        LayerwisePrefill(model, [5, 6], SnapKV(24, 6, allocation=HeadAdaptive("model")))
    run = LayerwisePrefill(model, [5, 6], SnapKV(24, 6))
    with pytest.raises(RuntimeError, match="not finished"):
        _ = run.logits
