"""The engine on a random model: turns that run together get what they get alone, and nobody waits for everybody."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from transformers import PreTrainedModel

from app.engine.engine import Engine
from app.engine.generation import GenerationRequest
from app.engine.loading import LoadedModel
from app.errors import ServerBusyError, TurnCancelledError
from kv_compression import KVCache
from tests.engine_helpers import NEVER, engine_of, outcome, run, step
from tests.kv_helpers import random_tokens

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tiny_model: Callable[..., PreTrainedModel]) -> Iterator[MakeEngine]:
    """Makes an engine that does not run yet: tests take its steps, or start it."""
    started: list[Engine] = []

    def make(*, turns: int = 4, memory: int = 2**30, waiting: int = 32, tokens: int = 10**6, patience_s: float = 60.0):
        loaded = LoadedModel(tiny_model(), None, 256, frozenset(), "weights", "digest")  # type: ignore[arg-type]
        started.append(engine_of(loaded, turns, memory, waiting, tokens, patience_s))
        return started[-1]

    yield make
    for engine in started:
        engine._restoring.shutdown()


def request(number: int, length: int, tenant: str = "t", max_tokens: int = 6) -> GenerationRequest:
    return GenerationRequest(tenant, random_tokens(length, number), max_tokens, keep_archive=True)


def test_turns_together_get_what_they_get_alone(make_engine: MakeEngine) -> None:
    requests = [request(number, length) for number, length in enumerate([90, 5, 40, 33, 17, 64])]
    together, engine = run(make_engine(), requests), make_engine()
    for number, (tokens, finished) in enumerate(together):
        ((alone, ended),) = run(engine, [requests[number]])
        assert tokens == alone
        assert len(tokens) == 6
        assert (finished.reason, finished.kept_tokens) == ("length", ended.kept_tokens)
        assert finished.segment is not None
        assert ended.segment is not None
        assert (finished.segment.start, finished.segment.stop) == (0, len(requests[number].token_ids) + 6)
        for ours, theirs in zip(finished.segment.layers, ended.segment.layers, strict=True):
            assert ours.counts == theirs.counts
            for one, other in zip(ours, theirs, strict=True):
                assert torch.allclose(one.keys, other.keys, atol=1e-4)


def test_a_long_prompt_holds_nobody_up(make_engine: MakeEngine) -> None:
    """Others read beside it, and those that answer get a token in every pass."""
    engine = make_engine(turns=3)
    answering = engine.submit(request(0, 10, max_tokens=40), NEVER)
    step(engine)
    long, short = engine.submit(request(1, 200), NEVER), engine.submit(request(2, 12), NEVER)
    for passes in range(1, 5):
        step(engine)
        assert answering._events.qsize() == 1 + passes
    assert short._events.qsize() >= 2
    assert long._events.qsize() == 0


def test_short_prompts_share_a_pass(make_engine: MakeEngine) -> None:
    engine = make_engine(turns=8)
    generations = [engine.submit(request(number, 5), NEVER) for number in range(4)]
    step(engine)
    assert [generation._events.qsize() for generation in generations] == [1, 1, 1, 0]


def test_tenants_take_turns(make_engine: MakeEngine) -> None:
    engine = make_engine(turns=1)
    greedy = [engine.submit(request(number, 9, "greedy", max_tokens=1), NEVER) for number in range(4)]
    modest = engine.submit(request(9, 9, "modest", max_tokens=1), NEVER)
    while modest.finished is None and modest._events.qsize() < 2:
        step(engine)
    assert [generation._events.qsize() for generation in greedy] == [2, 0, 0, 0]


def test_memory_bounds_what_runs_together(make_engine: MakeEngine) -> None:
    model = make_engine().loaded.model
    entry = 3 * 2 * (2 * 8 * 4 + 4)  # layers, heads; keys and values of 8 numbers, and a position
    engine = make_engine(memory=entry * 2 * (30 + 24 + 6))
    for number in range(3):
        engine.submit(request(number, 30), NEVER)
    step(engine)
    assert (len(engine._turns), engine.waiting) == (2, 1)
    assert model.config.num_hidden_layers == 3
    alone = make_engine(memory=1)
    assert len(run(alone, [request(0, 30), request(1, 30)])) == 2


def test_what_waits_is_bounded_in_turns_and_tokens(make_engine: MakeEngine) -> None:
    engine = make_engine(waiting=2)
    engine.submit(request(0, 9), NEVER)
    engine.submit(request(1, 9), NEVER)
    with pytest.raises(ServerBusyError) as refused:
        engine.submit(request(2, 9), NEVER)
    assert refused.value.retry_after_s
    engine = make_engine(tokens=100)
    engine.submit(request(0, 200), NEVER)
    with pytest.raises(ServerBusyError):
        engine.submit(request(1, 9), NEVER)


def test_who_waited_too_long_is_told(make_engine: MakeEngine) -> None:
    engine = make_engine(turns=1, patience_s=0.05)
    engine.submit(request(0, 9, max_tokens=60), NEVER)
    step(engine)
    late = engine.submit(request(1, 9), NEVER)
    time.sleep(0.06)
    step(engine)
    with pytest.raises(ServerBusyError, match="too long"):
        outcome(late)
    assert engine.waiting == 0


@pytest.mark.parametrize("passes", [0, 1, 4])
def test_a_client_that_leaves_frees_its_place_at_once(make_engine: MakeEngine, passes: int) -> None:
    engine, cancelled = make_engine(turns=1), threading.Event()
    generation = engine.submit(request(0, 40), cancelled)
    for _ in range(passes):
        step(engine)
    cancelled.set()
    other = engine.submit(request(1, 9), NEVER)
    while step(engine):
        pass
    assert len(outcome(other)[0]) == 6
    with pytest.raises(TurnCancelledError):
        outcome(generation)


def test_one_turns_fault_is_its_own(make_engine: MakeEngine) -> None:
    def broken() -> KVCache | None:
        raise RuntimeError("the store lies")

    engine = make_engine()
    bad = engine.submit(GenerationRequest("t", random_tokens(20), 6, restore=broken), NEVER)
    ((tokens, _),) = run(engine, [request(1, 20)])
    assert len(tokens) == 6
    with pytest.raises(RuntimeError, match="the store lies"):
        outcome(bad)


def test_a_slow_store_holds_up_its_own_turn_only(make_engine: MakeEngine) -> None:
    engine, released = make_engine(), threading.Event()

    def slow() -> KVCache | None:
        released.wait(30)
        return None

    engine.start()
    waiting = engine.submit(GenerationRequest("t", random_tokens(20), 6, restore=slow), NEVER)
    assert len(outcome(engine.submit(request(1, 20), NEVER))[0]) == 6
    released.set()
    assert len(outcome(waiting)[0]) == 6
    engine.stop()
    with pytest.raises(ServerBusyError, match="stopping"):
        engine.submit(request(2, 20), NEVER)


def test_stopping_ends_what_runs_and_what_waits(make_engine: MakeEngine) -> None:
    engine = make_engine(turns=1)
    running = engine.submit(request(0, 20, max_tokens=200), NEVER)
    waiting = engine.submit(request(1, 20), NEVER)
    engine.start()
    next(iter(running.tokens(on_wait=lambda: None)))
    engine.stop()
    for generation in (running, waiting):
        with pytest.raises(ServerBusyError, match="stopping"):
            outcome(generation)
