"""Stop strings and seeds, through HTTP, on the real model."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

QUESTION = "How often is the oil of the main pump changed, and by whom?"


def body_of(facts: str, **more: Any) -> dict[str, Any]:
    return {"message": QUESTION, "collection": facts, "max_tokens": 24, **more}


def answer_of(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post("/chat", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def streamed(http: httpx.Client, body: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The pieces, and the last event's data."""
    with http.stream("POST", "/chat", json={**body, "stream": True}) as response:
        data = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: ")]
    return [event["text"] for event in data if set(event) == {"text"}], data[-1]


def test_an_answer_ends_before_the_stop_string(http: httpx.Client, facts: str) -> None:
    whole = answer_of(http, body_of(facts))["answer"]
    middle = len(whole) // 2
    stop = whole[middle : middle + 9]  # cuts through a token at both ends, most likely
    cut = whole[: whole.index(stop)]
    pieces, done = streamed(http, body_of(facts, stop=["not in it", stop]))
    assert ("".join(pieces), done["answer"], done["finish_reason"]) == (cut, cut, "stop")
    assert done["usage"]["completion_tokens"] < 24
    plain = answer_of(http, body_of(facts, stop=stop))
    assert (plain["answer"], plain["finish_reason"]) == (cut, "stop")
    follow_up = answer_of(http, {"message": "And by whom?", "session_id": done["session_id"], "max_tokens": 4})
    assert follow_up["usage"]["cached_tokens"] == done["usage"]["prompt_tokens"] + done["usage"]["completion_tokens"]


def test_an_answer_that_is_stopped_at_once_is_empty(http: httpx.Client, facts: str) -> None:
    first = answer_of(http, body_of(facts))["answer"][0]
    pieces, done = streamed(http, body_of(facts, stop=first))
    assert (pieces, done["answer"], done["citations"], done["usage"]["completion_tokens"]) == ([], "", [], 0)
    assert done["finish_reason"] == "stop"
    follow_up = answer_of(http, {"message": "And by whom?", "session_id": done["session_id"], "max_tokens": 4})
    assert follow_up["usage"]["cached_tokens"] == done["usage"]["prompt_tokens"]


def test_a_seed_gives_the_same_answer_beside_others(http: httpx.Client, facts: str) -> None:
    seeded = body_of(facts, temperature=1.5, top_p=0.95, seed=2**63 - 1)
    others = [body_of(facts, temperature=1.5, seed=seed) for seed in (1, 2)]
    alone = answer_of(http, seeded)["answer"]
    with ThreadPoolExecutor(4) as pool:
        together = [
            found["answer"] for found in pool.map(lambda body: answer_of(http, body), [seeded, *others, seeded])
        ]
    assert together[0] == together[3] == alone
    assert len(set(together)) == 3
