"""What is timed side by side does the same work, in turns."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from app.engine.weights import HalfLinear, can_halve, halve
from benchmarks.decode import weight_bytes
from benchmarks.random_caches import as_dynamic, random_cache
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


def test_the_baseline_of_decoding_computes_the_same(tiny_model: Callable[..., PreTrainedModel]) -> None:
    plain, runner = tiny_model(), runner_of(tiny_model())
    caches = [random_cache(runner, 100) for _ in range(2)]
    with torch.no_grad():
        theirs = plain(torch.tensor([[7], [7]]), cache=as_dynamic(caches), use_cache=True).logits[:, -1]
    for cache, expected in zip(caches, theirs, strict=True):
        torch.testing.assert_close(decode_step(runner.model, cache, 7), expected, atol=1e-4, rtol=0)
    assert plain.config._attn_implementation == "sdpa" != runner.model.config._attn_implementation


def test_the_floor_counts_the_bytes_of_linear_layers(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model().to(torch.bfloat16).float()
    linear = sum(module.weight.nbytes for module in model.modules() if isinstance(module, torch.nn.Linear))
    assert weight_bytes(model) == (linear, linear)
    if can_halve(model.device, model.dtype):
        halve(model)
    halved = any(isinstance(module, HalfLinear) for module in model.modules())
    assert weight_bytes(model) == (linear // 2 if halved else linear, linear)


def test_the_timed_prefill_is_that_of_the_library(tiny_model: Callable[..., PreTrainedModel]) -> None:
    runner, prompt = runner_of(tiny_model()), random_tokens(50)
    reading = runner.read(prompt, [])
    cache, recorder, seconds = prefill(runner, prompt)
    assert (cache.length, cache.entries) == (reading.cache.length, reading.cache.entries)
    for layer, seen in recorder.layers.items():
        torch.testing.assert_close(seen.queries, reading.observation.of(layer).queries)
    assert 0 < recorder.seconds < seconds
