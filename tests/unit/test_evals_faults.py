"""The parts of the fault runs that need no service: what is drawn, what is forged, when a trigger acts, what counts."""

import random
import socket
import threading
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from app.sessions.kv_frame import FrameError, framed_size, pack_chunk, unpack_chunk
from evals.faults.cases import DISTURBANCES, MOMENTS, WEIGHTS, draw
from evals.faults.counts import HEADER, Outcome, Reply, judge, table
from evals.faults.damage import DAMAGES
from evals.faults.forging import flipped, forged, reframed
from evals.faults.proxy import Proxy, Trigger
from kv_compression import KVCache, decode_segment, encode_segment
from kv_compression.errors import CodecError

REFERENCE: dict[str, Any] = {
    "turn": 1,
    "answer": "Every 400 hours.",
    "answerable": True,
    "finish_reason": "stop",
    "notices": [],
    "usage": {"prompt_tokens": 90, "completion_tokens": 5, "cached_tokens": 0},
    "citations": [],
    "passages": [],
}


def test_a_case_is_drawn_from_its_seed_and_number_alone() -> None:
    assert draw(3, 41) == draw(3, 41)
    assert draw(3, 41).rng.random() == draw(3, 41).rng.random()
    assert {draw(3, number) for number in range(50)} != {draw(4, number) for number in range(50)}


def test_every_fault_and_every_moment_comes() -> None:
    cases = [draw(0, number) for number in range(4000)]
    assert set(Counter(case.fault for case in cases)) == set(WEIGHTS)
    assert {(case.fault, case.moment) for case in cases if case.moment} == {
        (fault, moment) for fault in DISTURBANCES for moment in MOMENTS
    }
    assert all(case.turn >= 2 for case in cases if case.fault in DAMAGES)


def stored_chunk() -> tuple[str, bytes]:
    config = LlamaConfig(num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, hidden_size=8, head_dim=8)
    cache = KVCache(config, device="cpu", dtype=torch.float32)
    cache.update(torch.ones(1, 1, 3, 8), torch.ones(1, 1, 3, 8), 0)
    return "k:0", pack_chunk("k:0", 0, encode_segment(cache.segment(0), "model")[0])


def test_a_forged_header_is_one_that_only_the_codec_can_refuse() -> None:
    key, value = stored_chunk()
    assert forged(key, value, {}) == value
    for changes in ({"total": 1}, {"mark": bytes(16)}, {"planes": 4}, {"count": 2}, {"size": 2**62}, {"version": 3}):
        payload = unpack_chunk(key, 0, forged(key, value, dict(changes)))
        with pytest.raises(CodecError):
            decode_segment([payload], "model")


def test_a_flipped_bit_and_a_foreign_frame() -> None:
    key, value = stored_chunk()
    changed = flipped(value, random.Random(0))
    assert sum((a ^ b).bit_count() for a, b in zip(value, changed, strict=True)) == 1
    with pytest.raises(FrameError):
        unpack_chunk(key, 0, changed)
    assert unpack_chunk("other:4", 4, reframed("other:4", value)) == value[framed_size(0) :]


def talk_through(proxy: Proxy, *requests: bytes) -> list[bytes]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as connection:
        replies = []
        for request in requests:
            connection.sendall(request)
            replies.append(connection.recv(100))
        return replies


@pytest.mark.parametrize("at", ["request", "reply", "answer"])
def test_a_trigger_acts_once_at_its_occasion(at: Any) -> None:
    heard: list[bytes] = []
    happened: list[list[bytes]] = []

    def echo(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(100):
                heard.append(data)
                connection.sendall(b"+" + data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=echo, args=(listener,), daemon=True)
        thread.start()
        proxy = Proxy(listener.getsockname()[1])
        proxy.trigger = Trigger(at, (b"GET",), lambda: happened.append(list(heard)), nth=2)
        assert talk_through(proxy, b"GET 1", b"GET 2", b"GET 3") == [b"+GET 1", b"+GET 2", b"+GET 3"]
        thread.join(5)
        proxy.close()
    assert happened == [[b"GET 1"] if at == "request" else [b"GET 1", b"GET 2"]]


def test_what_counts() -> None:
    def found(reply: Reply, **options: Any) -> dict[str, int]:
        outcome = Outcome("none", 0)
        judge(outcome, reply, REFERENCE, deadline_s=5, **options)
        return outcome.found

    right = {**REFERENCE, "usage": {**REFERENCE["usage"], "cached_tokens": 70}}
    assert found(Reply(200, 1.0, right, text="Every 400 hours.")) == {}
    assert found(Reply(200, 6.0, right)) == {"hangs": 1}
    assert found(Reply(200, 1.0, {**right, "answer": "Every 40 hours."})) == {"wrong": 1}
    assert found(Reply(0, 1.0, text="Every 5"), broken=True) == {"wrong": 1}
    assert found(Reply(0, 1.0, text="Every 4"), broken=True) == {}
    assert found(Reply(0, 1.0)) == {"other": 1}
    assert found(Reply(500, 1.0, code="internal_error")) == {"5xx": 1}
    assert found(Reply(503, 1.0, code="busy")) == {"5xx": 1}
    assert found(Reply(503, 1.0, code="busy", retry_after=True)) == {}
    assert found(Reply(409, 1.0, code="session_busy")) == {"other": 1}
    assert found(Reply(409, 1.0, code="session_busy"), allowed=(409,)) == {}


def test_the_table_sums_by_fault() -> None:
    outcomes = [
        Outcome("bit flip", 0, {"wrong": 2}, cached=1, answers=2),
        Outcome("bit flip", 1, disturbed=False, answers=1),
        Outcome("none", 2, {"leaked": 100}),
    ]
    rows = table(outcomes)
    assert rows["bit flip"] == [2, 1, "1/3", 2, 0, 0, 0, 0, 0]
    assert rows["all"] == [3, 2, "1/3", 2, 0, 0, 0, 100, 0]
    assert len(rows["all"]) == len(HEADER) - 1
