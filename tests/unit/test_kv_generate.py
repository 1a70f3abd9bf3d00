"""transformers' own `generate` on a compressed cache: greedy, sampled, by prompt lookup and with an assistant."""

from collections.abc import Callable

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from kv_compression import HeadAdaptive, KVCache, KVzip, Profile, SnapKV, attach, compress, decode_step
from tests.kv_helpers import ARCHITECTURES, empty_cache, entries_of, random_tokens, run_prefill

SHARES = ((0.4, 2.2), (1.6, 0.3), (0.5, 1.0))
POLICIES = {
    "uniform": SnapKV(24, window=6),
    "head-adaptive": SnapKV(24, window=6, allocation=HeadAdaptive("model", floor=0.1)),
    "profile": SnapKV(24, window=6, allocation=Profile(SHARES)),
}
GREEDY = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
DRAFTS = 5

MakeModel = Callable[..., PreTrainedModel]


@pytest.fixture(params=["llama", "qwen3", "gemma2", "gemma3_text"])
def model(request: pytest.FixtureRequest, tiny_model: MakeModel) -> PreTrainedModel:
    """Attached; the gemmas have sliding windows of 16."""
    model = tiny_model(request.param, **ARCHITECTURES[request.param])
    attach(model)
    return model


@pytest.fixture
def llama(tiny_model: MakeModel) -> PreTrainedModel:
    model = tiny_model()
    attach(model)
    return model


def _prompt(tokens: int = 60) -> torch.Tensor:
    return torch.tensor([random_tokens(tokens)])


def _step_by_step(model: PreTrainedModel, ids: torch.Tensor, cache: KVCache, tokens: int) -> list[int]:
    """The greedy answer of this library's own decoding."""
    token, answer = int(ids[0, -1]), []
    for _ in range(tokens):
        token = int(decode_step(model, cache, token).argmax())
        answer.append(token)
    return answer


def _forwards(model: PreTrainedModel) -> list[int]:
    """Of every forward from now on the number of tokens, as the layers see them."""
    seen: list[int] = []
    model.get_input_embeddings().register_forward_pre_hook(lambda module, ids: seen.append(ids[0].shape[1]))
    return seen


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_greedy_generation_is_step_by_step_decoding(policy: SnapKV, model: PreTrainedModel) -> None:
    ids = _prompt()
    answer = model.generate(ids, cache=compress(model, ids, policy), **GREEDY)
    assert answer[0, 60:].tolist() == _step_by_step(model, ids, compress(model, ids, policy), 24)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_prompt_lookup_is_greedy_generation(policy: SnapKV, model: PreTrainedModel) -> None:
    ids = _prompt()
    plain, drafted = compress(model, ids, policy), compress(model, ids, policy)
    expected = model.generate(ids, cache=plain, **GREEDY)
    seen = _forwards(model)
    answer = model.generate(ids, cache=drafted, prompt_lookup_num_tokens=DRAFTS, **GREEDY)
    assert torch.equal(answer, expected)
    assert max(seen) > 1  # there were drafts, and nothing that the cache holds was run again
    assert max(seen) <= 1 + DRAFTS
    _equal_caches(drafted, plain)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_assisted_is_greedy_generation(policy: SnapKV, model: PreTrainedModel, tiny_model: MakeModel) -> None:
    ids, assistant = _prompt(), tiny_model(num_hidden_layers=1)
    plain, drafted = compress(model, ids, policy), compress(model, ids, policy)
    expected = model.generate(ids, cache=plain, **GREEDY)
    seen = _forwards(model)
    answer = model.generate(ids, cache=drafted, assistant_model=assistant, **GREEDY)
    assert torch.equal(answer, expected)
    assert max(seen) > 1
    _equal_caches(drafted, plain)


def _equal_caches(one: KVCache, other: KVCache) -> None:
    """The same entries, of tokens that were accepted only; which of them are run one by one makes rounding errors."""
    assert one.length == other.length
    for layer in range(len(one.layers)):
        here, there = entries_of(one, layer), entries_of(other, layer)
        assert here.counts == there.counts
        for mine, its in zip(here, there, strict=True):
            assert torch.equal(mine.positions, its.positions)
            assert torch.allclose(mine.keys, its.keys, atol=1e-4)
            assert torch.allclose(mine.values, its.values, atol=1e-4)


def test_a_good_assistant_saves_forwards(llama: PreTrainedModel, tiny_model: MakeModel) -> None:
    """The same model as its own assistant, on a cache that holds everything: all drafts are right."""
    ids, policy, assistant = _prompt(), SnapKV(1000, window=6), tiny_model()
    assistant.generation_config.update(num_assistant_tokens=7, assistant_confidence_threshold=0.0)
    cache, seen = compress(llama, ids, policy), _forwards(llama)
    llama.generate(ids, cache=cache, assistant_model=assistant, **GREEDY)
    assert seen == [8, 8, 8]  # for 24 tokens


def test_an_attached_assistant_assists(llama: PreTrainedModel) -> None:
    ids, policy = _prompt(), SnapKV(24, window=6)
    expected = llama.generate(ids, cache=compress(llama, ids, policy), **GREEDY)
    assert torch.equal(
        llama.generate(ids, cache=compress(llama, ids, policy), assistant_model=llama, **GREEDY), expected
    )


def test_sampling_draws_as_from_a_cache_of_transformers(model: PreTrainedModel) -> None:
    ids, drawn = _prompt(), []
    for cache in (compress(model, ids, SnapKV(1000, window=6)), DynamicCache(config=model.config)):
        torch.manual_seed(3)
        drawn.append(model.generate(ids, cache=cache, max_new_tokens=24, do_sample=True, top_k=20, eos_token_id=None))
    assert torch.equal(*drawn)


def test_generation_goes_on_over_turns(model: PreTrainedModel) -> None:
    """What one turn left in the cache and what the next one adds, by generate and step by step."""
    ids, policy = _prompt(), SnapKV(24, window=6)
    cache = compress(model, ids, policy)
    ids = model.generate(ids, cache=cache, prompt_lookup_num_tokens=DRAFTS, **GREEDY)
    ids = torch.cat([ids, torch.tensor([random_tokens(9, seed=1)])], dim=1)
    held = cache.copy()
    answer = model.generate(ids, cache=cache, prompt_lookup_num_tokens=DRAFTS, **GREEDY)
    run = run_prefill(model, held, ids[0, held.length :].tolist(), chunk=4)
    first = int(run.logits.argmax())
    assert answer[0, ids.shape[1] :].tolist() == [first, *_step_by_step(model, torch.tensor([[first]]), held, 23)]


def test_compress_keeps_what_a_prefill_and_a_selection_keep(llama: PreTrainedModel) -> None:
    ids, policy, cache = _prompt(), SnapKV(24, window=6), empty_cache(llama)
    run = run_prefill(llama, cache, ids[0, :-1].tolist(), chunk=16, window=6)
    _equal_caches(compress(llama, ids, policy), cache.select(policy, run.observation))


def test_compress_keeps_a_cache_of_the_callers_whole_over_turns(llama: PreTrainedModel) -> None:
    whole, policy = empty_cache(llama), SnapKV(24, window=6)
    ids = _prompt()
    answer = llama.generate(ids, cache=compress(llama, ids, policy, whole), **GREEDY)
    assert (whole.length, whole.entries) == (59, 59)
    ids = torch.cat([answer, torch.tensor([random_tokens(9, seed=1)])], dim=1)
    seen = _forwards(llama)
    working = compress(llama, ids, policy, whole)
    assert sum(seen) == 59 + 24 + 9 - 59  # only what came since
    assert (whole.length, whole.entries) == (92, 92)
    assert (working.length, working.entries) == (92, 24)


def test_compress_says_what_is_wrong(llama: PreTrainedModel) -> None:
    ids, policy = _prompt(), SnapKV(24, window=6)
    with pytest.raises(ValueError, match=r"\[1, tokens\], not \[60\]"):
        compress(llama, ids[0], policy)
    with pytest.raises(ValueError, match=r"\[1, tokens\], not \[2, 60\]"):
        compress(llama, ids.expand(2, -1), policy)
    with pytest.raises(ValueError, match="at least two more"):
        compress(llama, ids[:, :1], policy)
    whole = empty_cache(llama)
    compress(llama, ids, policy, whole)
    with pytest.raises(ValueError, match="holds 59 of 60 tokens"):
        compress(llama, ids, policy, whole)
    with pytest.raises(ValueError, match="reconstruct"):
        compress(llama, ids, KVzip(24))


def test_a_model_must_be_attached(tiny_model: MakeModel) -> None:
    with pytest.raises(ValueError, match="attach"):
        compress(tiny_model(), _prompt(), SnapKV(24, window=6))


def test_what_generate_cannot_do_is_refused(llama: PreTrainedModel) -> None:
    ids, policy = _prompt(), SnapKV(24, window=6)
    for settings in ({"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}):
        with pytest.raises(ValueError, match="one sequence, not 2: no batches, beams"):
            llama.generate(ids, cache=compress(llama, ids, policy), **{**GREEDY, **settings})
    cache = compress(llama, ids, policy)
    with pytest.raises(ValueError, match="it must lack at least the last token"):
        llama.generate(ids[:, :59], cache=cache, **GREEDY)
    with pytest.raises(ValueError, match="masks of the caller's own"):
        llama(ids[:, -1:], cache=compress(llama, ids, policy), attention_mask=torch.zeros(1, 1, 1, 60))
    with pytest.raises(ValueError, match="ends before position 59, and the tokens given begin at 70"):
        llama(input_ids=ids[:, -1:], position_ids=torch.tensor([[70]]), cache=cache)


def test_a_crop_takes_the_last_tokens_back(model: PreTrainedModel) -> None:
    """Tokens that were rejected leave no trace: what is decoded next is as if they had never been run."""
    ids, policy = _prompt(), POLICIES["profile"]
    cache, plain = compress(model, ids, policy), compress(model, ids, policy)
    cache.activate_past_recording()
    run_prefill(model, cache, random_tokens(20, seed=1), chunk=20)
    cache.crop(-20)
    _equal_caches(cache, plain)
    for token in random_tokens(20, seed=2):
        assert torch.allclose(decode_step(model, cache, token), decode_step(model, plain, token), atol=1e-4)


def test_a_crop_past_a_choice_leaves_what_was_dropped_dropped(llama: PreTrainedModel) -> None:
    ids = _prompt()
    cache = compress(llama, ids, POLICIES["profile"])
    before = [[head.positions for head in entries_of(cache, layer)] for layer in range(3)]
    cache.crop(-30)
    assert cache.length == 29
    for layer in range(3):
        for positions, head in zip(before[layer], entries_of(cache, layer), strict=True):
            assert head.positions.tolist() == positions[positions < 29].tolist()


def test_a_crop_says_what_it_cannot_take_back(tiny_model: MakeModel) -> None:
    model = tiny_model("gemma2", **ARCHITECTURES["gemma2"])
    attach(model)
    cache = compress(model, _prompt(), SnapKV(24, window=6))
    with pytest.raises(ValueError, match="activate_past_recording"):
        cache.layers[0].crop(-1)
    with pytest.raises(ValueError, match="negative number of the cache's 59 tokens"):
        cache.crop(3)
    with pytest.raises(ValueError, match="negative number of the cache's 59 tokens"):
        cache.crop(-60)


def test_a_reset_forgets_everything(model: PreTrainedModel) -> None:
    ids, policy = _prompt(), SnapKV(24, window=6)
    cache = empty_cache(model)
    compress(model, ids, policy, cache)
    cache.reset()
    assert (cache.length, cache.nbytes) == (0, 0)
    _equal_caches(compress(model, ids, policy, cache), compress(model, ids, policy))
