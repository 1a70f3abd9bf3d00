"""Rotations against the positions that models give their keys, and what recorders make of queries and weights."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from kv_compression import KVCache, Prefill, UnsupportedModelError, attach, decode_step
from kv_compression.adapter import rotation_of
from tests.kv_helpers import SLIDING

LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS = {
    "llama": ("llama", {}),
    "llama scaled": ("llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 64}}),
    "gemma3": ("gemma3_text", SLIDING),
    "cohere2, full layers without": ("cohere2", SLIDING),
    "gpt_neox, a quarter of the channels": ("gpt_neox", {}),
    "glm4, interleaved": ("glm4", {}),
    "smollm3, every fourth layer without": ("smollm3", {"num_hidden_layers": 4, "layer_types": None}),
}


def _keys(model: PreTrainedModel, start: int) -> list[torch.Tensor]:
    cache = KVCache(model.config, device="cpu", dtype=torch.float32)
    for layer in cache.layers:
        layer.length = start
    Prefill(model, cache, [5, 9, 40, 7]).step()
    return [torch.stack([head.keys for head in layer]) for layer in cache.segment(start).layers]


@pytest.mark.parametrize("name", MODELS)
def test_turned_keys_are_those_of_other_positions(name: str, tiny_model: Callable[..., PreTrainedModel]) -> None:
    model_type, changes = MODELS[name]
    model = tiny_model(model_type, **changes)
    attach(model)
    rotation = rotation_of(model)
    for layer, (near, far) in enumerate(zip(_keys(model, 3), _keys(model, 200), strict=True)):
        torch.testing.assert_close(rotation.turn(layer, near, torch.full((4,), 197)), far, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(rotation.turn(layer, far, torch.full((4,), -197)), near, atol=1e-4, rtol=1e-3)


def test_the_mean_of_turns_is_their_mean(tiny_model: Callable[..., PreTrainedModel]) -> None:
    for model_type in ("llama", "glm4"):
        model = tiny_model(model_type)
        attach(model)
        rotation, by = rotation_of(model), torch.tensor([3, 4, 11])
        vector = torch.randn(1, model.config.head_dim, generator=torch.Generator().manual_seed(0))
        turned = torch.stack([rotation.turn(1, vector, by[at : at + 1]) for at in range(3)]).mean(dim=0)
        torch.testing.assert_close(vector @ rotation.mean(1, vector.shape[1], by).T, turned)


def test_positions_that_are_added_to_the_states_are_refused(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("opt", word_embed_proj_dim=32, ffn_dim=32)
    attach(model)
    with pytest.raises(UnsupportedModelError, match="embeds positions"):
        rotation_of(model)


def test_statistics_are_those_of_the_queries_before_rope(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("llama")
    attach(model)
    token_ids = torch.randint(3, 96, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    states: list[torch.Tensor] = []
    hook = model.model.layers[1].self_attn.q_proj.register_forward_hook(lambda *call: states.append(call[2][0]))
    run = Prefill(model, KVCache(model.config, device="cpu", dtype=torch.float32), token_ids, observe=("statistics",))
    states.clear()
    assert run.step()
    hook.remove()
    queries = states[0][4:].view(46, 4, -1).transpose(0, 1).double()  # without the first four
    found = run.observation.of(1).statistics
    assert found is not None
    assert found.count == 46
    torch.testing.assert_close(found.mean, queries.mean(dim=1), atol=1e-5, rtol=1e-4)
    expected = torch.stack([of_head.T.cov(correction=0) for of_head in queries])
    torch.testing.assert_close(found.covariance, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("chunk", [7, 50])
def test_sums_are_those_of_the_written_out_attention(chunk: int, tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("llama")
    token_ids = torch.randint(3, 96, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(torch.tensor([token_ids]), output_attentions=True).attentions
    attach(model)
    cache = KVCache(model.config, device="cpu", dtype=torch.float32)
    run = Prefill(model, cache, token_ids, chunk=chunk, observe=("sums",))
    while not run.step():
        pass
    for layer, of_layer in enumerate(weights):
        found = run.observation.of(layer).sums
        assert found is not None
        torch.testing.assert_close(
            found[:, :50], of_layer[0].sum(dim=1).view(2, 2, 50).sum(dim=1), atol=1e-4, rtol=1e-4
        )


def test_an_observer_goes_on_while_decoding(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("llama")
    attach(model)
    cache = KVCache(model.config, device="cpu", dtype=torch.float32)
    run = Prefill(model, cache, [5, 9, 40, 7], window=3, observe=("sums",))
    run.step()
    for token in (3, 8):
        decode_step(model, cache, token, run.observer)
    whole = KVCache(model.config, device="cpu", dtype=torch.float32)
    expected = Prefill(model, whole, [5, 9, 40, 7, 3, 8], window=3, observe=("sums",))
    expected.step()
    found = run.observer.observation(cache.length)
    assert (found.tokens, found.length) == (6, 6)
    for layer in range(3):
        here, there = found.of(layer), expected.observation.of(layer)
        assert here.sums is not None
        assert there.sums is not None
        torch.testing.assert_close(here.queries, there.queries)
        torch.testing.assert_close(here.sums[:, :6], there.sums[:, :6])
