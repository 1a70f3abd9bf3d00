"""The reference: a compressed cache gives the logits of the full sequence with the dropped positions masked.

The full side is one pass over all tokens, without any cache, with an attention written out here that hides from every
query what its turn's cache had dropped, per layer and per KV head.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from kv_compression import (
    H2O,
    TOVA,
    Blend,
    CriticalKV,
    ExpectedAttention,
    FastGen,
    Full,
    HeadAdaptive,
    KeyDiff,
    Knorm,
    KVCache,
    LayerEntries,
    Observer,
    Policy,
    Prefill,
    Profile,
    Pyramid,
    SnapKV,
    StreamingLLM,
    Uniform,
    attach,
    decode_step,
)
from kv_compression.observation import Observed
from tests.kv_helpers import ARCHITECTURES, empty_cache, random_tokens

EVERY_POLICY = ("llama", "qwen3", "mistral", "gemma3_text")
POLICIES: dict[str, Policy] = {
    "full": Full(),
    "snapkv": SnapKV(24, window=6, kernel=5),
    "snapkv-max": SnapKV(20, window=4, kernel=3, pooling="max"),
    "streaming_llm": StreamingLLM(24, sinks=3),
    "tova": TOVA(24),
    "knorm": Knorm(24),
    "keydiff": KeyDiff(24),
    "expected_attention": ExpectedAttention(24),
    "h2o": H2O(24),
    "criticalkv": CriticalKV(SnapKV(24, window=6, kernel=5)),
    "blend": Blend(SnapKV(24, window=6, kernel=5), ExpectedAttention(24)),
    "fastgen": FastGen(special=(0, 2), punctuation=(5, 6, 7), recovery=0.6, frequent=0.2, local=0.1, window=6),
    "keydiff by a profile": KeyDiff(24, Profile(((0.4, 2.2), (1.6, 0.3), (0.5, 1.0)))),
    "pyramid": SnapKV(24, window=6, kernel=5, allocation=Pyramid(4)),
    "adaptive": SnapKV(24, window=6, kernel=5, allocation=HeadAdaptive()),
    "adaptive over the model": SnapKV(24, window=6, kernel=5, allocation=HeadAdaptive("model", floor=0.1)),
    "profile": SnapKV(24, window=6, kernel=5, allocation=Profile(((0.4, 2.2), (1.6, 0.3), (0.5, 1.0)))),
}


@dataclass
class Masked:
    """What each query may see, [kv_heads, tokens, tokens] a layer; `None` stands for layers with a sliding window."""

    kept: list[tuple[int, int, list[list[Tensor] | None]]] = field(default_factory=list)

    def drop(self, start: int, stop: int, cache: KVCache) -> None:
        """The queries of the tokens from `start` to `stop` see, of what came before, only what `cache` holds."""
        held = [None if layer.sliding_window else _positions(layer.buffer.entries) for layer in cache.layers]
        self.kept.append((start, stop, held))

    def visible(self, layer: int, tokens: int, kv_heads: int, window: int | None) -> Tensor:
        distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
        seen = ((distance >= 0) & (distance < (window or tokens))).expand(kv_heads, -1, -1).clone()
        for start, stop, held in self.kept:
            positions = held[layer]
            if positions is not None:
                for head, of_head in enumerate(positions):
                    seen[head, start:stop, :start] &= torch.zeros(start, dtype=torch.bool).index_fill(0, of_head, True)
        return seen


@pytest.fixture
def masked() -> Iterator[Masked]:
    """Registers the written-out attention, which reads its masks from here."""
    masked = Masked()

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
        seen = masked.visible(module.layer_idx, query.shape[2], key.shape[1], sliding_window)
        group = query.shape[1] // key.shape[1]
        logits = query @ key.repeat_interleave(group, dim=1).transpose(2, 3) * scaling
        if softcap is not None:
            logits = torch.tanh(logits / softcap) * softcap
        weights = logits.masked_fill(~seen.repeat_interleave(group, dim=0), -torch.inf).softmax(dim=-1)
        return (weights @ value.repeat_interleave(group, dim=1)).transpose(1, 2), None

    AttentionInterface.register("written_out", attention)
    AttentionMaskInterface.register("written_out", lambda *args, **kwargs: None)
    return masked


@dataclass
class Session:
    """Runs tokens on a cache, and remembers them with the logits after each piece. One observer sees all of them."""

    model: PreTrainedModel
    cache: KVCache
    observe: Collection[Observed]
    observer: Observer | None = None
    tokens: list[int] = field(default_factory=list)
    logits: dict[int, Tensor] = field(default_factory=dict)

    def prefill(self, tokens: Sequence[int], chunk: int) -> Prefill:
        observed = {"window": 6, "observe": self.observe, "observer": self.observer}
        run = Prefill(self.model, self.cache, tokens, chunk=chunk, **observed)
        while not run.step():
            pass
        self.observer = run.observer
        self.tokens += tokens
        self.logits[len(self.tokens) - 1] = run.logits
        return run

    def decode(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.tokens.append(token)
            self.logits[len(self.tokens) - 1] = decode_step(self.model, self.cache, token, self.observer)

    def difference(self) -> float:
        """From one pass over all tokens with the written-out attention, at the most different place."""
        self.model.set_attn_implementation("written_out")
        with torch.no_grad():
            expected = self.model(input_ids=torch.tensor([self.tokens]), use_cache=False).logits[0]
        return max(float((logits - expected[at]).abs().max()) for at, logits in self.logits.items())


def _session(model: PreTrainedModel, policy: Policy) -> Session:
    attach(model)
    return Session(model, empty_cache(model), policy.observe)


CASES = [(name, policy) for name in ARCHITECTURES for policy in (POLICIES if name in EVERY_POLICY else ["snapkv"])]


@pytest.mark.parametrize(("architecture", "policy_name"), CASES)
def test_turns_on_the_working_cache_equal_the_masked_full_cache(
    architecture: str, policy_name: str, masked: Masked, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    policy = POLICIES[policy_name]
    session = _session(tiny_model(architecture, **ARCHITECTURES[architecture]), policy)
    for turn, (length, chunk) in enumerate([(60, 16), (9, 4), (30, 50)]):
        run = session.prefill(random_tokens(length, turn), chunk)
        session.cache = session.cache.select(policy, run.observation)
        masked.drop(len(session.tokens), 1000, session.cache)
        session.decode(random_tokens(4, 10 + turn))
    if policy.budget is not None:
        full_layers = [layer for layer in session.cache.layers if layer.sliding_window is None]
        held = [layer.buffer.counts for layer in full_layers]
        assert sum(map(sum, held)) == pytest.approx((policy.budget + 4) * sum(map(len, held)), abs=len(held))
        ragged = len({count for counts in held for count in counts}) > 1
        assert ragged == (not isinstance(policy.allocation, Uniform)) or architecture == "gemma3_text"
    assert session.cache.length == len(session.tokens) == 111
    assert session.difference() < 1e-4
    masked.kept.clear()
    assert policy.budget is None or session.difference() > 1e-2, "the masks must matter"


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "mistral"])
def test_turns_on_the_whole_cache_equal_the_masked_full_cache(
    architecture: str, masked: Masked, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    """A follow-up sees everything again, whatever the answers before it were decoded from."""
    session = _session(tiny_model(architecture, **ARCHITECTURES[architecture]), POLICIES["snapkv"])
    whole = session.cache
    for turn in range(3):
        start = len(session.tokens)
        session.cache = whole
        run = session.prefill(random_tokens(40, turn), 16)
        session.cache = whole.select(POLICIES["snapkv"], run.observation)
        length = len(session.tokens)
        working = session.cache
        session.decode(random_tokens(5, 10 + turn))
        masked.drop(length, length + 5, whole)
        masked.kept[-1] = (length, length + 5, _positions_before(working, length))
        pieces = [*([whole.segment(0, start)] if start else []), whole.segment(start), working.segment(length)]
        whole = KVCache.from_segments(session.model.config, pieces, device="cpu", dtype=torch.float32)
    assert session.difference() < 1e-4


def _positions(entries: LayerEntries) -> list[Tensor]:
    return [head.positions.long() for head in entries]


def _positions_before(cache: KVCache, length: int) -> list[list[Tensor] | None]:
    segment = cache.segment(0, length)
    return [
        None if layer.sliding_window else _positions(piece)
        for layer, piece in zip(cache.layers, segment.layers, strict=True)
    ]


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3_text", "qwen3", "gemma2"])
def test_the_full_policy_decodes_what_transformers_generates(
    architecture: str, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    changes = {**ARCHITECTURES[architecture], **({"sliding_window": 16} if architecture == "mistral" else {})}
    model = tiny_model(architecture, **changes)
    prompt = random_tokens(50, 0)
    generated = model.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False, eos_token_id=None)
    session = _session(model, POLICIES["full"])
    logits = session.prefill(prompt, 16).logits
    answer = []
    for _ in range(30):
        answer.append(int(logits.argmax()))
        logits = decode_step(model, session.cache, answer[-1])
    assert answer == generated[0, 50:].tolist()
