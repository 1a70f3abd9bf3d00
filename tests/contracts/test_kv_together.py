"""Sequences that run together, in one row of tokens, get what each of them gets alone."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kv_compression import (
    H2O,
    HeadAdaptive,
    KeyDiff,
    KVCache,
    Observer,
    Piece,
    Policy,
    Prefill,
    SnapKV,
    attach,
    run_together,
)
from tests.kv_helpers import ARCHITECTURES, empty_cache, entries_of, random_tokens

SESSIONS: list[tuple[int, int, Policy]] = [
    (70, 16, SnapKV(24, window=6, kernel=5, allocation=HeadAdaptive())),
    (9, 4, KeyDiff(24)),
    (41, 64, H2O(20)),
    (33, 7, SnapKV(16, window=4, kernel=3)),
]
"""Tokens of a turn's prompt, the chunk, and the policy: ragged heads and uniform ones, and prompts of all lengths."""


@dataclass
class Outcome:
    """What a session ends with."""

    answer: list[int]
    logits: Tensor
    cache: KVCache


def session(model: PreTrainedModel, number: int, turns: int = 2) -> Generator[Piece, Tensor, Outcome]:
    """Gives what is to run next, and wants the logits after it."""
    length, chunk, policy = SESSIONS[number]
    cache, answer = empty_cache(model), []
    observer: Observer | None = None
    for turn in range(turns):
        prompt = random_tokens(length, 10 * turn + number)
        run = Prefill(model, cache, prompt, chunk=chunk, window=6, observe=policy.observe, observer=observer)
        while not run.accept((yield run.piece)):
            pass
        cache, observer, logits = cache.select(policy, run.observation), run.observer, run.logits
        for _ in range(6):
            answer.append(int(logits.argmax()))
            logits = yield Piece(cache, answer[-1:], observer)
    return Outcome(answer, logits, cache)


def drive(model: PreTrainedModel, sessions: Sequence[Generator[Piece, Tensor, Outcome]]) -> list[Outcome]:
    """Run all sessions to their ends, in every pass a piece of each that has not ended."""
    pieces = {index: next(session) for index, session in enumerate(sessions)}
    ended: dict[int, Outcome] = {}
    while pieces:
        given = run_together(model, list(pieces.values()))
        for index, logits in zip(list(pieces), given, strict=True):
            try:
                pieces[index] = sessions[index].send(logits)
            except StopIteration as end:
                ended[index] = end.value
                del pieces[index]
    return [ended[index] for index in range(len(sessions))]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_together_as_alone(architecture: str, tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model(architecture, **ARCHITECTURES[architecture])
    attach(model)
    together = drive(model, [session(model, number) for number in range(len(SESSIONS))])
    for number, ours in enumerate(together):
        (alone,) = drive(model, [session(model, number)])
        assert ours.answer == alone.answer
        assert torch.allclose(ours.logits, alone.logits, atol=1e-4)
        for layer in range(len(alone.cache.layers)):
            mine, expected = entries_of(ours.cache, layer), entries_of(alone.cache, layer)
            assert mine.counts == expected.counts
            for one, other in zip(mine, expected, strict=True):
                assert torch.equal(one.positions, other.positions)
                assert torch.allclose(one.keys, other.keys, atol=1e-4)


def test_sequences_do_not_see_each_other(tiny_model: Callable[..., PreTrainedModel]) -> None:
    """Another neighbour changes nothing, a change of its own tokens does."""
    model = tiny_model()
    attach(model)
    logits = []
    for neighbour, own in [(1, 0), (2, 0), (1, 3)]:
        pieces = [Piece(empty_cache(model), random_tokens(20, seed)) for seed in (neighbour, own)]
        logits.append(run_together(model, pieces)[1])
    assert torch.equal(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2], atol=1e-2)


def test_pieces_that_cannot_run(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model()
    attach(model)
    cache = empty_cache(model)
    with pytest.raises(ValueError, match="no tokens"):
        run_together(model, [Piece(cache, [])])
    with pytest.raises(ValueError, match="one cache"):
        run_together(model, [Piece(cache, [5]), Piece(cache, [6])])
    assert cache.length == 0
