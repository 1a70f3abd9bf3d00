"""FastGen against its paper written out with sets, from the weights that transformers itself returns."""

from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerFast as FastTokenizer

from kv_compression import FastGen
from tests.kv_helpers import empty_cache, entries_of, random_tokens, run_prefill

KV_HEADS, GROUP, TOKENS, WINDOW = 2, 2, 60, 10


@torch.no_grad()
def _weights(model: PreTrainedModel, token_ids: list[int]) -> list[Tensor]:
    model.set_attn_implementation("eager")
    return [weights[0] for weights in model(torch.tensor([token_ids]), output_attentions=True).attentions]


SPECIAL, PUNCTUATION = (3, 7, 12), tuple(range(20, 34))


def _written_out(weights: Tensor, head: int, token_ids: list[int]) -> list[tuple[set[int], float]]:
    """The combinations of one KV head with what each recovers of the window's attention, the cheapest first."""
    group = weights[head * GROUP : (head + 1) * GROUP]
    of_window, sums = group[:, -WINDOW:].mean(dim=(0, 1)).tolist(), group.sum(dim=(0, 1)).tolist()
    part = round(TOKENS * 0.3)
    frequent = set(sorted(range(TOKENS), key=lambda at: sums[at])[-part:])
    kinds = [
        {at for at, token in enumerate(token_ids) if token in SPECIAL},
        {at for at, token in enumerate(token_ids) if token in PUNCTUATION},
        frequent,
        set(range(TOKENS - part, TOKENS)),
        set(range(TOKENS)),
    ]
    combinations = [set().union(*kinds[: count + 1]) for count in range(5)]
    return [(kept, 1.0 if len(kept) == TOKENS else sum(of_window[at] for at in kept)) for kept in combinations]


def test_fastgen_is_the_cheapest_combination_that_recovers_enough(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model, token_ids = tiny_model(), random_tokens(TOKENS)
    weights, used = _weights(model, token_ids), set()
    run = run_prefill(model, cache := empty_cache(model), token_ids, 7, window=WINDOW, observe=FastGen.observe)
    for recovery in (0.01, 0.1, 0.3, 0.5, 0.8, 0.95):
        policy = FastGen(None, recovery, SPECIAL, PUNCTUATION, window=WINDOW)
        kept = cache.select(policy, run.observation)
        for layer in range(3):
            for head, held in enumerate(entries_of(kept, layer)):
                combinations = _written_out(weights[layer], head, token_ids)
                expected = next(kept for kept, recovered in combinations if recovered >= recovery)
                assert held.positions.tolist() == sorted(expected)
                used.add([kept for kept, _ in combinations].index(expected))
    assert len(used) == 5, "every combination must be seen"


@pytest.mark.parametrize("budget", [10, 22, 30, 45, 59])
def test_fastgen_recovers_as_much_as_a_budget_allows(budget: int, tiny_model: Callable[..., PreTrainedModel]) -> None:
    model, token_ids = tiny_model(), random_tokens(TOKENS)
    weights = _weights(model, token_ids)
    policy = FastGen(budget, 1.0, SPECIAL, PUNCTUATION, window=WINDOW)
    run = run_prefill(model, cache := empty_cache(model), token_ids, 60, window=WINDOW, observe=policy.observe)
    kept = cache.select(policy, run.observation)
    heads = [_written_out(weights[layer], head, token_ids) for layer in range(3) for head in range(KV_HEADS)]
    means = []
    for recovery in sorted({0.0, *(recovered for head in heads for _, recovered in head)}):
        counts = [len(next(kept for kept, found in head if found >= recovery)) for head in heads]
        means.append(sum(counts) / len(counts))
    assert kept.entries == max(mean for mean in means if mean <= budget)


def test_fastgen_wants_to_know_all_tokens(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model, policy = tiny_model(), FastGen(recovery=0.6, special=SPECIAL)
    run = run_prefill(model, cache := empty_cache(model), random_tokens(40), 16, observe=policy.observe)
    kept = cache.select(policy, run.observation)
    alone = run_prefill(model, copy := kept.copy(), random_tokens(30, 1), 16, observe=policy.observe)
    with pytest.raises(ValueError, match="observer of the one before"):
        copy.select(policy, alone.observation)
    later = run_prefill(model, kept, random_tokens(30, 1), 16, observer=run.observer)
    assert later.observation.of(0).token_ids.tolist() == random_tokens(40) + random_tokens(30, 1)
    assert kept.select(policy, later.observation).entries < kept.entries


def test_fastgen_finds_special_tokens_and_punctuation() -> None:
    words = {"<s>": 0, "word": 1, ".": 2, "--": 3, "a.": 4, "$": 5, "。": 6, "</s>": 7}
    tokenizer = FastTokenizer(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="word")), bos_token="<s>", eos_token="</s>"
    )
    policy = FastGen.for_tokenizer(tokenizer, recovery=0.9)
    assert (policy.special, policy.punctuation, policy.recovery) == ((0, 7), (2, 3, 6), 0.9)
