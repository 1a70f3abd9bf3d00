"""Policies that need more than the window, against their papers' formulas written out from transformers' own numbers.

Attention weights, queries before RoPE, keys and values come from passes of transformers' eager attention on its own
cache, or from an attention written out here; nothing of the library's recorders.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from kv_compression import (
    H2O,
    Blend,
    CriticalKV,
    ExpectedAttention,
    FastGen,
    Full,
    HeadAdaptive,
    Knorm,
    KVzip,
    LayerEntries,
    LayerObservation,
    Prefill,
    SnapKV,
    Uniform,
    attach,
    decode_step,
    reconstruct,
)
from tests.kv_helpers import empty_cache, entries_of, random_tokens, run_prefill

KV_HEADS, GROUP, DIM, TOKENS = 2, 2, 8, 60


@dataclass
class Eager:
    """What transformers computes: for every layer weights, queries before RoPE, keys and values [heads, tokens, …]."""

    weights: list[Tensor]
    queries: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]


@torch.no_grad()
def _eager(model: PreTrainedModel, token_ids: list[int]) -> Eager:
    model.set_attn_implementation("eager")
    queries: list[Tensor] = []
    hooks = [_on_queries(layer, queries) for layer in model.model.layers]
    found = model(torch.tensor([token_ids]), output_attentions=True, cache=(cache := DynamicCache(config=model.config)))
    for hook in hooks:
        hook.remove()
    layers = cache.layers
    keys, values = [layer.keys[0] for layer in layers], [layer.values[0] for layer in layers]
    return Eager([weights[0] for weights in found.attentions], queries, keys, values)


def _on_queries(layer: torch.nn.Module, found: list[Tensor]) -> torch.utils.hooks.RemovableHandle:
    def keep(module: torch.nn.Module, arguments: object, output: Tensor) -> None:
        found.append(output[0].view(-1, KV_HEADS * GROUP, DIM).transpose(0, 1))

    return layer.self_attn.q_proj.register_forward_hook(keep)


def _mean_turn(model: PreTrainedModel, start: int, count: int) -> Tensor:
    """[dim, dim], for columns: every unit vector turned to all positions by transformers' own code."""
    units = torch.eye(DIM)[:, None].expand(-1, count, -1)[None]  # [1, heads, positions, dim]
    cos, sin = model.model.rotary_emb(units, torch.arange(start, start + count)[None])
    return apply_rotary_pos_emb(units, units, cos, sin)[0][0].mean(dim=1).T


def _expected_attention(
    model: PreTrainedModel, queries: Tensor, end: int, head: int, keys: Tensor, values: Tensor
) -> Tensor:
    """Scores of the entries behind the sinks, of one KV head; queries before RoPE [query_heads, tokens, dim]."""
    turn = _mean_turn(model, end, 512)
    scores = torch.zeros(len(keys) - 4)
    for of_query_head in queries[head * GROUP : (head + 1) * GROUP]:
        mean, covariance = turn @ of_query_head.mean(dim=0), turn @ of_query_head.T.cov(correction=0) @ turn.T
        exponents = [key @ mean / DIM**0.5 + key @ covariance @ key / DIM / 2 for key in keys[4:]]
        scores += torch.stack(exponents).softmax(dim=0) / GROUP
    return scores * values[4:].norm(dim=-1)


def test_expected_attention_is_the_papers_formula(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model, token_ids = tiny_model(), random_tokens(TOKENS)
    eager = _eager(model, token_ids)
    run = run_prefill(model, cache := empty_cache(model), token_ids, 7, observe=ExpectedAttention.observe)
    for layer in range(3):
        scores = ExpectedAttention(20).score(entries_of(cache, layer), run.observation.of(layer))
        for head, found in enumerate(scores):
            states = eager.keys[layer][head], eager.values[layer][head]
            expected = _expected_attention(model, eager.queries[layer][:, 4:], TOKENS, head, *states)
            torch.testing.assert_close(found[4:], expected, atol=1e-5, rtol=1e-3)
    chosen = cache.select(ExpectedAttention(20), run.observation)
    assert entries_of(chosen, 1).counts == (20, 20)
    assert all(head.positions[:4].tolist() == [0, 1, 2, 3] for head in entries_of(chosen, 1))


def test_expected_attention_of_a_follow_up_on_what_was_kept(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model, policy = tiny_model(), ExpectedAttention(20, allocation=HeadAdaptive())
    run = run_prefill(model, cache := empty_cache(model), random_tokens(TOKENS), 16, observe=policy.observe)
    kept = cache.select(policy, run.observation)
    queries: list[Tensor] = []
    later = Prefill(model, kept, random_tokens(15, 1), observe=policy.observe)
    hook = _on_queries(model.model.layers[2], queries)
    assert later.step()
    hook.remove()
    for head, (of_head, found) in enumerate(
        zip(entries_of(kept, 2), policy.score(entries_of(kept, 2), later.observation.of(2)), strict=True)
    ):
        expected = _expected_attention(model, queries[0], TOKENS + 15, head, of_head.keys, of_head.values)
        torch.testing.assert_close(found[4:], expected, atol=1e-5, rtol=1e-3)


@dataclass
class WrittenOutH2O:
    """The paper's algorithm as an attention function on transformers' whole cache, with masks instead of evictions."""

    budget: int
    sums: dict[int, Tensor] = field(default_factory=dict)  # [kv_heads, tokens]
    kept: dict[int, Tensor] = field(default_factory=dict)

    def __call__(
        self, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: object, **options: object
    ) -> tuple[Tensor, None]:
        layer, new = module.layer_idx, query.shape[2]
        kept = pad(self.kept.get(layer, torch.ones(KV_HEADS, 0, dtype=torch.bool)), (0, new), value=True)
        seen = kept[:, None] & torch.ones(new, key.shape[2], dtype=torch.bool).tril(key.shape[2] - new)
        logits = query[0] @ key[0].repeat_interleave(GROUP, 0).transpose(1, 2) / DIM**0.5
        weights = logits.masked_fill(~seen.repeat_interleave(GROUP, 0), -torch.inf).softmax(dim=-1)
        before = self.sums.get(layer, torch.zeros(KV_HEADS, 0))
        self.sums[layer] = pad(before, (0, new)) + weights.sum(dim=1).view(KV_HEADS, GROUP, -1).sum(dim=1)
        self.kept[layer] = torch.stack([self._evict(*pair) for pair in zip(kept, self.sums[layer], strict=True)])
        return (weights @ value[0].repeat_interleave(GROUP, 0)).transpose(0, 1)[None], None

    def _evict(self, kept: Tensor, sums: Tensor) -> Tensor:
        held = kept.nonzero()[:, 0].tolist()
        recent, older = held[-self.budget // 2 :], held[: -self.budget // 2]
        heavy = sorted(older, key=lambda at: float(sums[at]), reverse=True)[: self.budget // 2]
        return torch.zeros_like(kept).index_fill(0, torch.tensor(heavy + recent), True)


@pytest.mark.parametrize("chunk", [7, TOKENS])
@torch.no_grad()
def test_h2o_is_the_papers_algorithm_in_prefill_and_decoding(
    chunk: int, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    model, policy, answer = tiny_model(), H2O(16), random_tokens(12, 1)
    attach(model)
    attached = model.config._attn_implementation
    AttentionInterface.register("h2o_written_out", h2o := WrittenOutH2O(16))
    AttentionMaskInterface.register("h2o_written_out", lambda *args, **kwargs: None)
    model.set_attn_implementation("h2o_written_out")
    whole = DynamicCache(config=model.config)
    model(torch.tensor([random_tokens(TOKENS)]), cache=whole)
    for token in answer:
        expected = model(torch.tensor([[token]]), cache=whole).logits[0, -1]
    model.set_attn_implementation(attached)
    run = run_prefill(model, cache := empty_cache(model), random_tokens(TOKENS), chunk, observe=policy.observe)
    cache = cache.select(policy, run.observation)
    for token in answer:
        logits = decode_step(model, cache, token, run.observer)
        cache = cache.select(policy, run.observer.observation(cache.length))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    for layer in range(3):
        sums = run.observer.observation(cache.length).of(layer).sums
        assert sums is not None
        torch.testing.assert_close(sums[:, : cache.length], h2o.sums[layer], atol=1e-4, rtol=1e-4)
        for head, kept in zip(entries_of(cache, layer), h2o.kept[layer], strict=True):
            assert head.positions.tolist() == kept.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("first_stage", [0.0, 0.5, 1.0])
def test_criticalkv_weighs_by_the_projected_values(
    first_stage: float, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    model, token_ids, scorer = tiny_model(), random_tokens(TOKENS), SnapKV(20, 6, 5, allocation=HeadAdaptive())
    eager = _eager(model, token_ids)
    run = run_prefill(model, cache := empty_cache(model), token_ids, 60, window=6)
    chosen = cache.select(CriticalKV(scorer, first_stage), run.observation)
    by_scores = cache.select(scorer, run.observation)
    for layer in range(3):
        projection = model.model.layers[layer].self_attn.o_proj.weight.detach()
        scores = scorer.score(entries_of(cache, layer), run.observation.of(layer))
        for head, (held, score) in enumerate(zip(entries_of(chosen, layer), scores, strict=True)):
            count = entries_of(by_scores, layer).counts[head]
            norms = torch.zeros(TOKENS)
            for query_head in range(head * GROUP, (head + 1) * GROUP):
                of_head = projection[:, query_head * DIM : (query_head + 1) * DIM]
                norms += torch.stack([(of_head @ value).abs().sum() for value in eager.values[layer][head]]) / GROUP
            ranked = sorted(range(TOKENS - 6), key=lambda at: float(score[at]), reverse=True)
            first = ranked[: max(int(count * first_stage) - 6, 0)]
            rest = sorted(set(ranked) - set(first), key=lambda at: float((score[at] + 1e-4) * norms[at]), reverse=True)
            expected = first + rest[: count - 6 - len(first)] + list(range(TOKENS - 6, TOKENS))
            assert held.positions.tolist() == sorted(expected)


def test_criticalkv_says_what_it_cannot_do() -> None:
    torch.manual_seed(0)
    positions = torch.arange(30, dtype=torch.int32).expand(KV_HEADS, -1)
    entries = LayerEntries.stack(*torch.randn(2, KV_HEADS, 30, DIM), positions)
    seen = LayerObservation(torch.randn(4, 6, DIM), DIM**-0.5)
    with pytest.raises(ValueError, match="output projection"):
        CriticalKV(SnapKV(10, 6)).choose({0: (entries, seen)})
    with pytest.raises(ValueError, match="knorm"):
        CriticalKV(Knorm(10)).choose({0: (entries, replace(seen, output=torch.randn(32, 4, DIM)))})
    with pytest.raises(ValueError, match="must choose by its scores"):
        CriticalKV(Full())


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_blend_is_the_mean_of_two_policies_shares(share: float, tiny_model: Callable[..., PreTrainedModel]) -> None:
    model, token_ids = tiny_model(), random_tokens(TOKENS)
    first, second = SnapKV(20, 6, 5, allocation=HeadAdaptive()), ExpectedAttention(30, sinks=3)
    policy = Blend(first, second, share)
    run = run_prefill(model, cache := empty_cache(model), token_ids, 60, window=6, observe=policy.observe)
    chosen = cache.select(policy, run.observation)
    assert chosen.entries == pytest.approx(20, abs=0.1)
    for layer in range(3):
        held, seen = entries_of(cache, layer), run.observation.of(layer)
        both = zip(first.score(held, seen), second.score(held, seen), strict=True)
        for head, (vote, forecast) in zip(entries_of(chosen, layer), both, strict=True):
            mean = (1 - share) * vote / vote.sum() + share * forecast / forecast.sum()
            between = mean[3 : TOKENS - 6].topk(len(head.positions) - 9).indices + 3
            expected = {0, 1, 2, *between.tolist(), *range(TOKENS - 6, TOKENS)}
            assert set(head.positions.tolist()) == expected


def test_a_blend_says_what_it_cannot_do(tiny_model: Callable[..., PreTrainedModel]) -> None:
    with pytest.raises(ValueError, match="share"):
        Blend(SnapKV(10, 6), ExpectedAttention(10), 1.5)
    with pytest.raises(ValueError, match="must choose by its scores"):
        Blend(SnapKV(10, 6), Full())
    with pytest.raises(ValueError, match="must choose by its scores"):
        Blend(CriticalKV(SnapKV(10, 6)), ExpectedAttention(10))
    model = tiny_model()
    run = run_prefill(model, cache := empty_cache(model), random_tokens(TOKENS), 60, window=6)
    with pytest.raises(ValueError, match="knorm"):
        cache.select(Blend(SnapKV(10, 6), Knorm(10)), run.observation)


@pytest.mark.parametrize("policy", [H2O(10), ExpectedAttention(10), FastGen(10)])
def test_what_was_not_observed_is_asked_for(
    policy: H2O | ExpectedAttention | FastGen, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    model = tiny_model()
    run = run_prefill(model, cache := empty_cache(model), random_tokens(30), 16)
    with pytest.raises(ValueError, match="observe=policy.observe"):
        cache.select(policy, run.observation)


def test_kvzip_with_the_same_number_for_every_head(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model()
    run_prefill(model, cache := empty_cache(model), random_tokens(TOKENS), 60)
    observation = reconstruct(model, cache, random_tokens(TOKENS), [5, 6], [7])
    kept = cache.select(KVzip(20, allocation=Uniform()), observation)
    for layer in range(3):
        importance = observation.of(layer).importance
        assert importance is not None
        for head, scores in zip(entries_of(kept, layer), importance, strict=True):
            best = sorted(range(4, TOKENS), key=lambda at: float(scores[at]), reverse=True)[:16]
            assert head.positions.tolist() == sorted([0, 1, 2, 3, *best])


def test_entries_before_since_all_stay(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model, policy = tiny_model("llama"), ExpectedAttention(10)
    run = run_prefill(model, cache := empty_cache(model), random_tokens(TOKENS), 60, observe=policy.observe)
    kept = entries_of(cache.select(policy, run.observation, since=30), 1)
    assert kept.counts == (40, 40)
    for head in kept:
        assert head.positions[:30].tolist() == list(range(30))
