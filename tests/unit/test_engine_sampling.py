"""Sampled turns and stop strings in the engine: nothing else that runs changes them, and what is stored agrees."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from app.engine.engine import Engine
from app.engine.generation import GenerationRequest
from app.engine.loading import LoadedModel
from app.engine.sampling import Sampling
from tests.engine_helpers import NEVER, engine_of, outcome, run, step
from tests.kv_helpers import random_tokens

PROMPT = random_tokens(70, 3)
MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def tokenizer(models_dir: Path) -> PreTrainedTokenizerBase:
    """Its first 96 tokens, all that the tiny model knows, are single characters and marks without text."""
    return AutoTokenizer.from_pretrained(models_dir / "smollm2-135m-instruct")


@pytest.fixture
def make_engine(tiny_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> Iterator[MakeEngine]:
    made: list[Engine] = []

    def make(*model: str, **changes: object) -> Engine:
        loaded = LoadedModel(tiny_model(*model, **changes), tokenizer, 256, frozenset(), "weights", "digest")
        made.append(engine_of(loaded))
        return made[-1]

    yield make
    for engine in made:
        engine._restoring.shutdown()


def request(sampling: Sampling, max_tokens: int = 16, prompt: list[int] = PROMPT) -> GenerationRequest:
    return GenerationRequest("t", prompt, max_tokens, sampling, keep_archive=True)


def test_a_seed_gives_the_same_tokens_whatever_else_runs(make_engine: MakeEngine) -> None:
    requests = [request(Sampling(1.0, top_p, seed)) for seed, top_p in enumerate([1.0, 0.9, 0.5])]
    requests += [request(Sampling(), prompt=random_tokens(length, length)) for length in (5, 33)]
    together = [tokens for tokens, _ in run(make_engine(), requests)]
    alone = [run(make_engine(), [one])[0][0] for one in requests]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == 5


def test_turns_without_a_seed_differ(make_engine: MakeEngine) -> None:
    (one, _), (other, _) = run(make_engine(), [request(Sampling(1.0))] * 2)
    assert one != other


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_stop_string_ends_a_turn_and_what_it_leaves_agrees(
    make_engine: MakeEngine, tokenizer: PreTrainedTokenizerBase, length: int
) -> None:
    """As if the turn had been asked for so many tokens only."""
    engine, seeded = make_engine(), Sampling(1.0, seed=11)
    ((tokens, _),) = run(engine, [request(seeded)])
    ids = [token for token in tokens if tokenizer.decode([token], skip_special_tokens=True).strip()]
    stop = tokenizer.decode(ids[6 : 6 + length], skip_special_tokens=True)
    generation = engine.submit(request(replace(seeded, stop=(stop,))), NEVER)
    passes = 0
    while step(engine):
        passes += 1
    kept, finished = outcome(generation)
    text, answer = (tokenizer.decode(some, skip_special_tokens=True).lstrip() for some in (tokens, kept))
    assert (finished.reason, finished.tail) == ("stop", "")
    assert answer == text[: text.index(stop)]
    assert tokens[: len(kept)] == kept
    complete = next(n for n in range(17) if stop in tokenizer.decode(tokens[:n], skip_special_tokens=True).lstrip())
    assert passes == 5 + complete - 1  # the last pass of the prompt's five gives the first token
    ((_, shorter),) = run(engine, [request(seeded, len(kept))])
    assert finished.segment is not None
    assert shorter.segment is not None
    assert finished.segment.stop == shorter.segment.stop == len(PROMPT) + len(kept)
    for ours, theirs in zip(finished.segment.layers, shorter.segment.layers, strict=True):
        assert ours.counts == theirs.counts
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.positions, other.positions)
            assert torch.allclose(one.keys, other.keys, atol=1e-5)


def test_what_is_held_back_at_the_end_is_emitted(make_engine: MakeEngine, tokenizer: PreTrainedTokenizerBase) -> None:
    engine, seeded = make_engine(), Sampling(1.0, seed=11)
    ((tokens, _),) = run(engine, [request(seeded)])
    begun = tokenizer.decode(tokens[-3:], skip_special_tokens=True) + "…"
    ((kept, finished),) = run(engine, [request(replace(seeded, stop=(begun,)))])
    assert (kept, finished.reason) == (tokens, "length")


def test_a_sliding_window_cannot_take_tokens_back_so_nothing_is_left(
    make_engine: MakeEngine, tokenizer: PreTrainedTokenizerBase
) -> None:
    engine, seeded = make_engine("mistral", sliding_window=8), Sampling(1.0, seed=11)
    ((tokens, whole),) = run(engine, [request(seeded)])
    ids = [token for token in tokens if tokenizer.decode([token], skip_special_tokens=True).strip()]
    stop = tokenizer.decode(ids[6:9], skip_special_tokens=True)
    ((kept, finished),) = run(engine, [request(replace(seeded, stop=(stop,)))])
    assert whole.segment is not None
    assert finished.segment is None
    assert kept == tokens[: len(kept)]
    assert finished.reason == "stop"
