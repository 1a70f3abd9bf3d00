"""Renumbering against keys that are rotated at their new positions from the start, by the model's own embedding.

The keys before their rotation are caught on the way, and an attention written out here looks at them in a tensor with
one place for every new position, empty ones hidden.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from kv_compression import (
    Allocation,
    HeadAdaptive,
    KeyDiff,
    KVCache,
    Prefill,
    Profile,
    SnapKV,
    StreamingLLM,
    Uniform,
    attach,
    compress,
    decode_step,
    renumbered,
)
from kv_compression.adapter import rotation_of
from tests.kv_helpers import ARCHITECTURES, empty_cache, entries_of, random_tokens, run_prefill

SHARES = ((0.4, 2.2), (1.6, 0.3), (0.5, 1.0))
CONTEXT = 64

MakeModel = Callable[..., PreTrainedModel]


@dataclass
class Keys:
    """Of every layer the keys of all tokens in the order they came, before rotation [kv_heads, tokens, dim], and what
    rotates them: `rotate(layer, keys, positions)`."""

    apply: Callable[..., tuple[Tensor, Tensor]]
    layers: int
    caught: list[list[Tensor]] = field(default_factory=list)
    tables: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *args: object, **named: object) -> object:
        if len(self.tables) < self.layers:
            self.tables.append((cos[0], sin[0]))
        else:
            if not self.caught or len(self.caught[-1]) == self.layers:
                self.caught.append([])
            self.caught[-1].append(key[0])
        return self.apply(query, key, cos, sin, *args, **named)

    def rotated(self, layer: int, head: int, tokens: Sequence[int], positions: Tensor) -> Tensor:
        """[tokens, dim]"""
        keys = torch.cat([forward[layer] for forward in self.caught], dim=1)[head, list(tokens)]
        cos, sin = (table[positions.long()][None] for table in self.tables[layer])
        return self.apply(keys[None, None], keys[None, None], cos, sin)[1][0, 0]


@pytest.fixture
def catching(tiny_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[PreTrainedModel, Keys]]:
    """Makes an attached model, and what catches its keys from now on."""

    def make(model_type: str) -> tuple[PreTrainedModel, Keys]:
        model = tiny_model(model_type, **{**ARCHITECTURES[model_type], "max_position_embeddings": CONTEXT})
        attach(model)
        rotation_of(model)  # runs the model; found once
        module = sys.modules[type(model).__module__]
        keys = Keys(module.apply_rotary_pos_emb, model.config.num_hidden_layers)
        monkeypatch.setattr(module, "apply_rotary_pos_emb", keys)
        with torch.no_grad():
            model(torch.full((1, CONTEXT), 5), use_cache=False)  # shows the tables
        return model, keys

    return make


@dataclass
class Places:
    """Which token of the stream stands at which position of a cache, per layer and head."""

    cache: KVCache
    heads: list[list[dict[int, int]]] = field(default_factory=list)
    tokens: int = 0

    def appended(self, tokens: int) -> None:
        if not self.heads:
            self.heads = [[{} for _ in entries_of(self.cache, layer).counts] for layer in range(len(self.cache.layers))]
        for layer in self.heads:
            for head in layer:
                head.update({self.cache.length - tokens + i: self.tokens + i for i in range(tokens)})
        self.tokens += tokens

    def moved_to(self, cache: KVCache, other: KVCache) -> None:
        """From `cache` to its renumbered copy: the entries are the same, one by one."""
        for index, layer in enumerate(self.heads):
            pairs = zip(entries_of(cache, index), entries_of(other, index), strict=True)
            for head, (old, new) in enumerate(pairs):
                tokens = [layer[head][position] for position in old.positions.tolist()]
                layer[head] = dict(zip(new.positions.tolist(), tokens, strict=True))
        self.cache = other

    def fresh(self, keys: Keys, layer: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of every head the positions, the keys rotated there now, and the values."""
        found = []
        for head, entries in enumerate(entries_of(self.cache, layer)):
            tokens = [self.heads[layer][head][position] for position in entries.positions.tolist()]
            found.append((entries.positions, keys.rotated(layer, head, tokens, entries.positions), entries.values))
        return found


def _reference(model: PreTrainedModel, keys: Keys, places: Places, token: int) -> Tensor:
    """Logits after one more token, by an attention of its own to freshly rotated keys."""
    length = places.cache.length
    held = [places.fresh(keys, layer) for layer in range(keys.layers)]

    def attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: object,
        scaling: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, None]:
        outputs = []
        for head, (positions, old_keys, old_values) in enumerate(held[module.layer_idx]):
            places_of_all = torch.zeros(length + 1, key.shape[-1]), torch.zeros(length + 1, value.shape[-1])
            seen = torch.zeros(length + 1, dtype=torch.bool)
            for place, old, new in zip(places_of_all, (old_keys, old_values), (key, value), strict=True):
                place[positions.long()], place[length] = old, new[0, head, 0]
            seen[positions.long()] = seen[length] = True
            if sliding_window is not None:
                seen[: length + 1 - sliding_window] = False
            group = query.shape[1] // key.shape[1]
            logits = query[0, head * group : (head + 1) * group, 0] @ places_of_all[0].T * scaling
            logits = logits if softcap is None else torch.tanh(logits / softcap) * softcap
            outputs.append(logits.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ places_of_all[1])
        return torch.cat(outputs)[None, None], None  # [1, 1, query_heads, dim]

    AttentionInterface.register("freshly_rotated", attention)
    AttentionMaskInterface.register("freshly_rotated", lambda *args, **kwargs: None)
    model.set_attn_implementation("freshly_rotated")
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor([[token]]), position_ids=torch.tensor([[length]]), use_cache=False
        ).logits[0, 0]
    model.set_attn_implementation("kv_compression")
    keys.caught.pop()
    return logits


@pytest.mark.parametrize("allocation", [Uniform(), HeadAdaptive("model", floor=0.1)], ids=["uniform", "head-adaptive"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2", "gemma3_text", "gpt_neox", "glm4", "granite"])
def test_kept_keys_are_as_if_rotated_at_their_new_positions(
    model_type: str, allocation: Allocation, catching: Callable[[str], tuple[PreTrainedModel, Keys]]
) -> None:
    model, keys = catching(model_type)
    cache = empty_cache(model)
    places = Places(cache)
    run = Prefill(model, cache, random_tokens(60), window=6)
    run.step()
    places.appended(60)
    chosen = cache.select(SnapKV(24, window=6, allocation=allocation), run.observation)
    before = chosen.copy()
    closed = renumbered(model, chosen)
    places.moved_to(chosen, closed)
    assert closed.length == max(layer.buffer.longest for layer in closed.layers) < 60
    for layer in range(keys.layers):
        for head, (positions, fresh, _) in zip(entries_of(closed, layer), places.fresh(keys, layer), strict=True):
            assert positions.tolist() == list(range(closed.length - len(positions), closed.length))
            assert torch.allclose(head.keys, fresh, atol=1e-4)
    assert torch.allclose(decode_step(model, closed.copy(), 7), _reference(model, keys, places, 7), atol=1e-4)
    for layer in range(keys.layers):  # what was renumbered is as it was
        for head, old in zip(entries_of(chosen, layer), entries_of(before, layer), strict=True):
            assert torch.equal(head.keys, old.keys)
            assert torch.equal(head.positions, old.positions)


@pytest.mark.parametrize("policy", [StreamingLLM(24), KeyDiff(20, Profile(SHARES))], ids=["uniform", "profile"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2"])
def test_a_sequence_outgrows_the_context(
    model_type: str, policy: StreamingLLM, catching: Callable[[str], tuple[PreTrainedModel, Keys]]
) -> None:
    """Eight times as many tokens as the model has positions, and the last logits are as if nothing had ever moved."""
    model, keys = catching(model_type)
    positions: list[int] = []
    model.model.layers[0].register_forward_pre_hook(
        lambda module, states, named: positions.extend(named["position_ids"][0].tolist()), with_kwargs=True
    )
    cache = empty_cache(model)
    places = Places(cache)
    stream = torch.tensor(random_tokens(8 * CONTEXT)).split(8)
    for piece in stream:
        run = Prefill(model, cache, piece.tolist(), window=1)
        run.step()
        places.appended(8)
        if cache.length > CONTEXT - 8:
            chosen = cache.select(policy, run.observation)
            cache = renumbered(model, chosen)
            places.moved_to(chosen, cache)
    assert (len(positions), max(positions)) == (8 * CONTEXT, CONTEXT - 1)
    kept = places.heads[1][0].values()
    assert max(kept) > 7 * CONTEXT
    assert min(kept) < 6 * CONTEXT
    expected = _reference(model, keys, places, 7)
    assert torch.allclose(decode_step(model, cache, 7), expected, atol=1e-3)


def test_generate_goes_on_after_renumbering(tiny_model: MakeModel) -> None:
    """The text is given as far as the cache counts it; what is generated is what is decoded step by step."""
    model = tiny_model(max_position_embeddings=CONTEXT)
    attach(model)
    ids = torch.tensor([random_tokens(60)])
    cache = renumbered(model, compress(model, ids, SnapKV(20, window=6)), room=8)
    assert cache.length == 20
    held = cache.copy()
    ids = ids[:, -(cache.length + 1) :]
    for options in ({}, {"prompt_lookup_num_tokens": 4}):
        answer = model.generate(ids, cache=held.copy(), max_new_tokens=8, do_sample=False, eos_token_id=None, **options)
        token, expected, step_by_step = int(ids[0, -1]), [], held.copy()
        for _ in range(8):
            token = int(decode_step(model, step_by_step, token).argmax())
            expected.append(token)
        assert answer[0, 21:].tolist() == expected


def test_a_cache_without_gaps_stays_as_it_is(tiny_model: MakeModel) -> None:
    model = tiny_model()
    cache = empty_cache(model)
    run_prefill(model, cache, random_tokens(20), chunk=20)
    same = renumbered(model, cache)
    assert same.length == 20
    for layer in range(3):
        for mine, its in zip(entries_of(same, layer), entries_of(cache, layer), strict=True):
            assert torch.equal(mine.keys, its.keys)
            assert torch.equal(mine.positions, its.positions)


def test_an_empty_cache_stays_empty(tiny_model: MakeModel) -> None:
    model = tiny_model()
    attach(model)
    assert renumbered(model, empty_cache(model)).length == 0
