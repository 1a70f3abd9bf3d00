"""Policies that look at attention, queries or projections, against formulas from transformers' own tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kv_compression import (
    H2O,
    CriticalKV,
    ExpectedAttention,
    FastGen,
    HeadAdaptive,
    KVCache,
    Policy,
    Prefill,
    SnapKV,
    attach,
    decode_step,
)

TEXT = torch.randint(3, 96, (60,), generator=torch.Generator().manual_seed(0)).tolist()
LAYER, GROUP, DIM = 1, 2, 8


def _chosen(model: PreTrainedModel, policy: Policy, chunk: int = 60) -> list[list[int]]:
    """Of every KV head of the middle layer the positions kept."""
    cache, run = _read(model, policy, chunk)
    entries = cache.select(policy, run.observation).layers[LAYER].buffer.entries
    assert entries is not None
    return [head.positions.tolist() for head in entries]


def _read(model: PreTrainedModel, policy: Policy, chunk: int = 60) -> tuple[KVCache, Prefill]:
    cache = KVCache(model.config, device="cpu", dtype=torch.float32)
    run = Prefill(model, cache, TEXT, chunk=chunk, window=max(policy.window, 1), observe=policy.observe)
    while not run.step():
        pass
    return cache, run


def _weights(model: PreTrainedModel, token_ids: list[int]) -> Tensor:
    """What transformers itself gives: [query_heads, tokens, tokens] of the middle layer."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights: Tensor = model(torch.tensor([token_ids]), output_attentions=True).attentions[LAYER][0]
    attach(model)
    return weights


@pytest.mark.parametrize("chunk", [7, 60])
def test_h2o_keeps_heavy_hitters_and_the_latest(chunk: int, tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("llama")
    sums = _weights(model, TEXT).sum(dim=1).view(-1, GROUP, 60).sum(dim=1)
    for head, kept in enumerate(_chosen(model, H2O(20), chunk)):
        assert kept == sorted([*sums[head, :50].topk(10).indices.tolist(), *range(50, 60)])


def test_h2o_goes_on_while_decoding(tiny_model: Callable[..., PreTrainedModel]) -> None:
    """One eviction, some tokens, another: with the sums that the attention to what was left gives, written out."""
    model, policy, answer = tiny_model("llama"), H2O(20), [7, 9, 40, 8]
    attach(model)
    cache, run = _read(model, policy)
    cache = cache.select(policy, run.observation)
    entries = cache.layers[LAYER].buffer.entries
    sums = run.observation.of(LAYER).sums
    assert entries is not None
    assert sums is not None
    expected, kept = sums[:, :64].clone(), [head.positions.tolist() for head in entries]
    queries: list[Tensor] = []
    for token in answer:
        decode_step(model, cache, token, run.observer)
        queries.append(run.observer.observation(cache.length).of(LAYER).queries[:, -1])
    entries = cache.layers[LAYER].buffer.entries
    assert entries is not None
    for head, held in enumerate(entries):
        for step, query in enumerate(queries):
            seen = len(kept[head]) + step + 1
            for one in query.view(-1, GROUP, DIM)[head]:
                weights = (held.keys[:seen] @ one * DIM**-0.5).softmax(0)
                expected[head, held.positions[:seen].long()] += weights
    again = cache.select(policy, run.observer.observation(cache.length)).layers[LAYER].buffer.entries
    assert again is not None
    for head, (held, left) in enumerate(zip(entries, again, strict=True)):
        old = held.positions[:-10].long()
        best = old[expected[head, old].topk(10).indices].tolist()
        assert left.positions.tolist() == sorted([*best, *held.positions[-10:].tolist()])


def test_expected_attention_is_the_papers(tiny_model: Callable[..., PreTrainedModel]) -> None:
    """With the mean and covariance of q_proj's output, and rotations written out as complex numbers."""
    model = tiny_model("llama")
    states: list[Tensor] = []
    hook = model.model.layers[LAYER].self_attn.q_proj.register_forward_hook(lambda *call: states.append(call[2][0]))
    with torch.no_grad():
        cached = model(torch.tensor([TEXT]), use_cache=True)
    hook.remove()
    layer = (cached.get("cache") or cached.past_key_values).layers[LAYER]
    queries = states[0][4:].view(56, 4, DIM).transpose(0, 1)
    angles = torch.arange(60, 60 + 512)[:, None] * model.model.rotary_emb.inv_freq
    mean_turn = torch.polar(torch.ones_like(angles), angles).mean(dim=0)
    turn = torch.zeros(DIM, DIM)
    for pair, value in enumerate(mean_turn):
        turn[pair, pair] = turn[pair + 4, pair + 4] = value.real
        turn[pair, pair + 4], turn[pair + 4, pair] = -value.imag, value.imag
    scores = torch.zeros(2, 60)
    for query_head, of_head in enumerate(queries):
        keys, values = layer.keys[0, query_head // GROUP], layer.values[0, query_head // GROUP]
        mean, covariance = turn @ of_head.mean(dim=0), turn @ of_head.T.cov(correction=0) @ turn.T
        logits = keys @ mean / DIM**0.5 + torch.stack([key @ covariance @ key for key in keys]) / DIM / 2
        scores[query_head // GROUP] += logits.softmax(0) / GROUP * values.norm(dim=-1)
    attach(model)
    scores[:, :4] = torch.inf
    expected = [sorted(of_head.topk(20).indices.tolist()) for of_head in scores]
    assert _chosen(model, ExpectedAttention(20)) == _chosen(model, ExpectedAttention(20), chunk=7) == expected


@pytest.mark.parametrize("allocation", [HeadAdaptive("model", floor=0.1), None])
def test_criticalkv_looks_twice(allocation: HeadAdaptive | None, tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("llama")
    attach(model)
    scorer = SnapKV(20, window=6, kernel=5) if allocation is None else SnapKV(20, 6, 5, allocation=allocation)
    cache, run = _read(model, scorer)
    entries = cache.layers[LAYER].buffer.entries
    assert entries is not None
    first = _chosen(model, scorer)
    chosen = _chosen(model, CriticalKV(scorer))
    weights = model.model.layers[LAYER].self_attn.o_proj.weight.view(-1, 4, DIM)
    for head, held in enumerate(entries):
        score = scorer.score(entries, run.observation.of(LAYER))[head]
        score[-6:] = torch.inf
        count = len(first[head])
        best = score.topk(count // 2).indices.tolist()
        norms = sum((held.values @ weights[:, 2 * head + of].T).abs().sum(-1) / 2 for of in range(GROUP))
        second = (score + 1e-4) * norms
        second[[*best, *range(54, 60)]] = torch.inf
        assert chosen[head] == sorted(second.topk(count).indices.tolist())


def test_fastgen_takes_the_cheapest_that_recovers_enough(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("llama")
    weights = _weights(model, TEXT)[:, -8:].mean(dim=1).view(-1, GROUP, 60).mean(dim=1)
    special, punctuation = tuple(TEXT[:2]), tuple(TEXT[20:26])
    lengths = set()
    for recovery in (0.0, 0.2, 0.35, 0.5, 0.7, 0.999):
        policy = FastGen(special, punctuation, recovery, frequent=0.2, local=0.2, window=8)
        for head, kept in enumerate(_chosen(model, policy)):
            held = {at for at, token in enumerate(TEXT) if token in special} | {59}
            steps = [
                {at for at, token in enumerate(TEXT) if token in punctuation},
                set(weights[head].topk(12).indices.tolist()),
                set(range(48, 60)),
                set(range(60)),
            ]
            while float(weights[head, list(held)].sum()) < recovery:
                held |= steps.pop(0)
            assert kept == sorted(held)
            lengths.add(len(kept))
    assert len(lengths) > 4


def test_observations_that_lack_something_are_refused(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("llama")
    attach(model)
    cache, run = _read(model, SnapKV(20, 6))
    for policy in (H2O(20), ExpectedAttention(20)):
        with pytest.raises(ValueError, match="observe=policy.observe"):
            cache.select(policy, run.observation)


def test_entries_before_since_all_stay(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model, policy = tiny_model("llama"), ExpectedAttention(10)
    attach(model)
    cache, run = _read(model, policy)
    kept = cache.select(policy, run.observation, since=30).layers[LAYER].buffer.entries
    assert kept is not None
    assert kept.counts == (40, 40)
    for head in kept:
        assert head.positions[:30].tolist() == list(range(30))
