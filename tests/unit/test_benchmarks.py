"""What is timed side by side does the same work, in turns."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from benchmarks.long_decode import as_dynamic, plain_model, random_cache
from benchmarks.timing import in_turns
from benchmarks.vote import prefill
from evals.kv_runs import Runner
from kv_compression import attach, decode_step
from tests.kv_helpers import random_tokens


def runner_of(model: PreTrainedModel) -> Runner:
    attach(model)
    return Runner(model, cast(Any, None), None)


def test_all_take_turns() -> None:
    calls: list[str] = []
    taken = in_turns({name: partial(calls.append, name) for name in "ab"}, repeats=3, warm=1)
    assert "".join(calls) == "ab" * 4
    assert taken.keys() == {"a", "b"}


def test_the_baseline_of_a_long_decode_computes_the_same(tiny_model: Callable[..., PreTrainedModel]) -> None:
    runner = runner_of(tiny_model())
    cache = random_cache(runner, 100)
    (dynamic, nbytes), plain = as_dynamic(cache), plain_model(runner.model)
    assert nbytes == cache.nbytes - 3 * 2 * 100 * 4  # positions of every layer and head
    with torch.no_grad():
        theirs = plain(torch.tensor([[7]]), cache=dynamic, use_cache=True).logits[0, -1]
    torch.testing.assert_close(decode_step(runner.model, cache, 7), theirs, atol=1e-4, rtol=0)
    assert plain.config._attn_implementation == "sdpa" != runner.model.config._attn_implementation
    assert {id(weight) for weight in plain.parameters()} == {id(weight) for weight in runner.model.parameters()}


def test_the_timed_prefill_is_that_of_the_library(tiny_model: Callable[..., PreTrainedModel]) -> None:
    runner, prompt = runner_of(tiny_model()), random_tokens(50)
    reading = runner.read(prompt, [])
    cache, recorder, seconds = prefill(runner, prompt)
    assert (cache.length, cache.entries) == (reading.cache.length, reading.cache.entries)
    for layer, seen in recorder.layers.items():
        torch.testing.assert_close(seen.queries, reading.observation.of(layer).queries)
    assert 0 < recorder.seconds < seconds
