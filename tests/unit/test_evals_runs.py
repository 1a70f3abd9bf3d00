"""Likelihoods of answers, each against a slower way to compute it."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from transformers import PreTrainedModel

from evals.kv_runs import Runner
from kv_compression import HeadAdaptive, Knorm, KVCache, SnapKV, attach, decode_step

TEXT = torch.randint(3, 96, (60,), generator=torch.Generator().manual_seed(1)).tolist()
PROMPT, ANSWER = [5, 9, 31, 7], [12, 44, 8, 80, 3]


@pytest.fixture
def runner(tiny_model: Callable[..., PreTrainedModel]) -> Runner:
    model = tiny_model()
    attach(model)
    return Runner(model, cast(Any, None), None)


def test_an_answers_likelihood_is_that_of_the_whole_sequence(runner: Runner) -> None:
    with torch.no_grad():
        logits = runner.model(torch.tensor([TEXT + PROMPT + ANSWER])).logits[0].log_softmax(dim=-1)
    start = len(TEXT + PROMPT)
    expected = -sum(float(logits[start + index - 1, token]) for index, token in enumerate(ANSWER)) / len(ANSWER)
    reading = runner.read(TEXT, [])
    assert runner.nll(reading.cache.copy(), PROMPT, ANSWER) == pytest.approx(expected, abs=1e-5)
    run = runner.prefill(reading.cache, PROMPT)
    assert runner.answer_nll(reading.cache, run.logits, ANSWER) == pytest.approx(expected, abs=1e-5)
    assert reading.cache.length == start + len(ANSWER)


def test_heads_of_different_lengths_give_what_single_steps_give(runner: Runner) -> None:
    reading = runner.read(TEXT, [])
    policy = Knorm(20, HeadAdaptive("model", floor=0.0))
    small = reading.select(policy, room=20)
    assert len({count for layer in small.layers for count in layer.buffer.counts}) > 1
    assert runner.nll(small, PROMPT, ANSWER) == pytest.approx(
        stepwise(runner, reading.select(policy, room=20)), abs=1e-5
    )


def test_one_reading_serves_policies_that_see_different_things(runner: Runner) -> None:
    reading = runner.read(TEXT, [SnapKV(20, 8)])
    assert reading.select(SnapKV(20, 8), room=0).entries == 20
    assert reading.cache.entries == len(TEXT)


def stepwise(runner: Runner, cache: KVCache) -> float:
    logits = runner.prefill(cache, PROMPT).logits
    losses: list[float] = []
    for token in cast(Sequence[int], ANSWER):
        losses.append(-float(logits.log_softmax(dim=-1)[token]))
        logits = decode_step(runner.model, cache, token)
    return sum(losses) / len(losses)
