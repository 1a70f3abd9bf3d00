"""KVzip's observation against the paper's formula written out, and profiles measured with it."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from kv_compression import KVCache, KVzip, Prefill, SnapKV, attach, measure_profiles, reconstruct
from kv_compression.reconstruction import OVERLAP, SINKS

REQUEST, GO_ON, CHUNK = [7, 8, 9], [11, 12], 25
TEXT = torch.randint(3, 96, (60,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture
def model(tiny_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    return tiny_model("llama")


def _cache(model: PreTrainedModel, text: list[int]) -> tuple[KVCache, Prefill]:
    cache = KVCache(model.config, device="cpu", dtype=torch.float32)
    run = Prefill(model, cache, text)
    run.step()
    return cache, run


def _written_out(model: PreTrainedModel) -> list[torch.Tensor]:
    """Per layer [kv_heads, entries], from the attention that transformers itself returns."""
    model.set_attn_implementation("eager")
    layers = [torch.zeros(2, len(TEXT)) for _ in range(3)]
    for start in range(0, len(TEXT), CHUNK):
        part = TEXT[start : start + CHUNK]
        asked = [*GO_ON, *TEXT[start - OVERLAP : start]] if start else REQUEST
        with torch.no_grad():
            output = model(torch.tensor([[*TEXT, *asked, *part]]), output_attentions=True)
        seen = [
            *range(min(SINKS, start)),
            *range(start, start + len(part)),
            *range(len(TEXT), len(TEXT + asked + part)),
        ]
        for layer, weights in zip(layers, output.attentions, strict=True):
            shares = weights[0, :, len(TEXT) :, seen]  # of the seen entries only: the softmax over them
            shares = shares / shares.sum(dim=-1, keepdim=True)
            of_chunk = shares[..., len(seen) - len(asked + part) - len(part) :][..., : len(part)]
            layer[:, start : start + len(part)] = of_chunk.amax(dim=1).view(2, 2, -1).amax(dim=1)
    return layers


def test_importance_is_the_papers(model: PreTrainedModel) -> None:
    expected = _written_out(model)
    attach(model)
    cache, _ = _cache(model, TEXT)
    observation = reconstruct(model, cache, TEXT, REQUEST, GO_ON, chunk=CHUNK)
    assert cache.length == cache.entries == len(TEXT)
    for layer, importance in enumerate(expected):
        torch.testing.assert_close(observation.of(layer).importance, importance, atol=1e-5, rtol=1e-4)


def test_kvzip_keeps_the_most_important_over_all_heads(model: PreTrainedModel) -> None:
    attach(model)
    cache, _ = _cache(model, TEXT)
    observation = reconstruct(model, cache, TEXT, REQUEST, GO_ON)
    kept = cache.select(KVzip(20, sinks=0), observation)
    assert kept.entries == 20
    everything = torch.stack([observation.of(layer).importance for layer in range(3)])
    threshold = everything.flatten().topk(20 * 6).values[-1]
    held = [[head.positions.tolist() for head in layer.buffer.entries] for layer in kept.layers]
    assert held == [[(head >= threshold).nonzero()[:, 0].tolist() for head in layer] for layer in everything]


def test_only_a_whole_cache_of_the_text_is_taken(model: PreTrainedModel) -> None:
    attach(model)
    cache, run = _cache(model, TEXT)
    for wrong, text in ((cache, TEXT[:-1]), (cache.select(SnapKV(40), run.observation), TEXT)):
        with pytest.raises(ValueError, match="every entry"):
            reconstruct(model, wrong, text, REQUEST, GO_ON)
    with pytest.raises(ValueError, match="reconstruct"):
        cache.select(KVzip(20), run.observation)


def test_a_profile_has_the_mean_one_and_a_share_for_every_head(model: PreTrainedModel) -> None:
    attach(model)
    profiles = measure_profiles(model, [TEXT, TEXT[:50]], REQUEST, GO_ON, budgets=[16, 24])
    for profile in profiles.values():
        shares = torch.tensor(profile.shares)
        assert shares.shape == (3, 2)
        assert float(shares.mean()) == pytest.approx(1, abs=1e-3)
    assert profiles == {
        budget: measure_profiles(model, [TEXT, TEXT[:50]], REQUEST, GO_ON, budgets=[budget])[budget]
        for budget in (16, 24)
    }
    with pytest.raises(ValueError, match="says nothing"):
        measure_profiles(model, [TEXT], REQUEST, GO_ON, budgets=[16, 60])
