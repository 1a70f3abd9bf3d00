"""Policies: SnapKV against the paper's formula written out, budgets, protection, and parameters that make no sense."""

import pytest
import torch

from kv_compression import (
    POLICIES,
    TOVA,
    Full,
    KeyDiff,
    Knorm,
    LayerEntries,
    LayerObservation,
    Policy,
    SnapKV,
    StreamingLLM,
)

KV_HEADS, GROUP, ENTRIES, DIM = 2, 3, 120, 8


def _layer(entries: int = ENTRIES, window: int = 8) -> tuple[LayerEntries, LayerObservation]:
    torch.manual_seed(1)
    keys = torch.randn(KV_HEADS, entries, DIM)
    positions = torch.arange(entries, dtype=torch.int32).expand(KV_HEADS, -1)
    queries = torch.randn(KV_HEADS * GROUP, window, DIM)
    return LayerEntries.stack(keys, torch.randn_like(keys), positions), LayerObservation(queries, DIM**-0.5)


def _choose(policy: Policy, entries: LayerEntries, seen: LayerObservation) -> torch.Tensor | None:
    """Indices of what stays [kv_heads, budget]."""
    choices = policy.choose({0: (entries, seen)})
    return torch.stack(choices[0]) if choices else None


def _snapkv_written_out(entries: LayerEntries, seen: LayerObservation, policy: SnapKV) -> torch.Tensor:
    """Scores of the positions before the window, with plain loops over heads, queries and positions."""
    scores, before = [], entries.counts[0] - seen.window
    for head in range(KV_HEADS):
        votes = torch.zeros(GROUP, before)
        for member in range(GROUP):
            for at in range(seen.window):
                visible = before + at + 1
                logits = entries.dense().keys[head, :visible] @ seen.queries[head * GROUP + member, at] * seen.scaling
                votes[member] += logits.softmax(0)[:before] / seen.window
        pooled, half = torch.zeros(before), policy.kernel // 2
        for position in range(before):
            near = votes[:, max(0, position - half) : position + half + 1]
            part = near.sum(1) / policy.kernel if policy.pooling == "avg" else near.amax(1)
            pooled[position] = part.mean()
        scores.append(pooled)
    return torch.stack(scores)


@pytest.mark.parametrize("pooling", ["avg", "max"])
@pytest.mark.parametrize("kernel", [1, 7, 15])
def test_snapkv_chooses_by_the_papers_formula(kernel: int, pooling: str) -> None:
    policy = SnapKV(40, window=8, kernel=kernel, pooling=pooling)
    entries, seen = _layer()
    chosen = _choose(policy, entries, seen)
    assert chosen is not None
    scores = _snapkv_written_out(entries, seen, policy)
    assert chosen[:, -8:].tolist() == [list(range(ENTRIES - 8, ENTRIES))] * KV_HEADS
    best = scores.topk(32, dim=1).values.sum(dim=1)
    torch.testing.assert_close(scores.gather(1, chosen[:, :-8]).sum(dim=1), best)  # max pooling makes ties


def test_a_larger_observation_is_cut_to_the_policys_window() -> None:
    entries, seen = _layer(window=20)
    policy = SnapKV(40, window=8)
    assert torch.equal(_choose(policy, entries, seen), _choose(policy, entries, seen.last(8)))


def test_a_soft_cap_is_part_of_the_vote() -> None:
    entries, seen = _layer()
    capped = LayerObservation(seen.queries, seen.scaling, softcap=0.5)
    policy = SnapKV(40, 8)
    assert not torch.allclose(torch.stack(policy.score(entries, capped)), torch.stack(policy.score(entries, seen)))


def test_streaming_llm_keeps_sinks_and_the_latest() -> None:
    chosen = _choose(StreamingLLM(20, sinks=4), *_layer())
    assert chosen is not None
    assert chosen.tolist() == [[*range(4), *range(ENTRIES - 16, ENTRIES)]] * KV_HEADS


def test_tova_is_the_last_tokens_mean_attention() -> None:
    entries, seen = _layer()
    keys = entries.dense().keys.repeat_interleave(GROUP, dim=0)
    weights = (keys @ seen.queries[:, -1, :, None])[..., 0].mul(seen.scaling).softmax(dim=-1).mean(dim=0)
    for scores in TOVA(30).score(entries, seen):
        torch.testing.assert_close(scores, weights)
    chosen = _choose(TOVA(30), entries, seen)
    assert bool((chosen == chosen[0]).all())
    assert int(chosen[0, -1]) == ENTRIES - 1


def test_knorm_keeps_the_shortest_keys() -> None:
    entries, seen = _layer()
    norms = entries.dense().keys.square().sum(dim=-1)
    assert torch.equal(_choose(Knorm(30), entries, seen), norms.topk(30, largest=False).indices.sort().values)


def test_keydiff_keeps_what_is_farthest_from_the_mean_direction() -> None:
    entries, seen = _layer()
    for head, chosen in zip(entries, _choose(KeyDiff(30), entries, seen), strict=True):
        directions = head.keys / head.keys.norm(dim=-1, keepdim=True)
        likeness = torch.cosine_similarity(head.keys, directions.mean(dim=0)[None], dim=-1)
        assert torch.equal(chosen, likeness.topk(30, largest=False).indices.sort().values)


@pytest.mark.parametrize("policy", [Full(), SnapKV(200, 8), SnapKV(ENTRIES, 8), StreamingLLM(ENTRIES)])
def test_nothing_is_dropped_within_the_budget(policy: Policy) -> None:
    assert _choose(policy, *_layer()) is None


@pytest.mark.parametrize(
    "policy", [SnapKV(33, 8), SnapKV(9, 8), StreamingLLM(33), StreamingLLM(1, sinks=0), TOVA(33), Knorm(1), KeyDiff(33)]
)
def test_the_budget_is_the_number_of_entries_that_stay(policy: Policy) -> None:
    chosen = _choose(policy, *_layer())
    assert chosen is not None
    assert chosen.shape == (KV_HEADS, policy.budget)
    assert bool((chosen[:, 1:] > chosen[:, :-1]).all())


@pytest.mark.parametrize(
    "make",
    [
        lambda: SnapKV(32, window=32),
        lambda: SnapKV(64, window=0),
        lambda: SnapKV(64, kernel=4),
        lambda: SnapKV(64, kernel=-1),
        lambda: SnapKV(64, pooling="median"),
        lambda: StreamingLLM(4, sinks=4),
        lambda: StreamingLLM(4, sinks=-1),
        lambda: TOVA(0),
        lambda: Knorm(0),
        lambda: KeyDiff(-1),
    ],
)
def test_parameters_that_make_no_sense_are_refused(make: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()  # type: ignore[operator]


def test_policies_are_found_by_name() -> None:
    assert {name: policy.name for name, policy in POLICIES.items()} == {name: name for name in POLICIES}
