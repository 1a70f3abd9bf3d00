"""Questions and conversations, through HTTP, on real models."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.service import ServiceProcess
from tests.integration.conftest import FACTS

Upload = Callable[..., dict[str, Any]]


def chat(http: httpx.Client, message: str, session_id: str | None = None, **more: Any) -> dict[str, Any]:
    body = {"message": message, "max_tokens": 24, **more} | ({"session_id": session_id} if session_id else {})
    answer = http.post("/chat", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def events_of(http: httpx.Client, path: str, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    events, name = [], ""
    with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                events.append((name, json.loads(line.removeprefix("data: "))))
    return events


def test_an_answer_has_all_the_fields_of_the_contract(http: httpx.Client, facts: str) -> None:
    answer = chat(http, "How often is the oil of the main pump changed?", collection=facts)
    assert set(answer) == {
        *("id", "session_id", "turn", "answer", "answerable", "finish_reason", "citations", "passages", "usage"),
        *("timings", "model", "compression", "notices"),
    }
    assert answer["answerable"]
    assert answer["turn"] == 1
    assert answer["usage"]["cached_tokens"] == 0
    assert answer["usage"]["cache_bytes"] > 0
    assert answer["timings"]["first_token_ms"] > 0
    assert "400 hours" in answer["passages"][0]["text"]


def test_a_follow_up_reuses_everything_but_its_own_tokens(http: httpx.Client, facts: str) -> None:
    first = chat(http, "How often is the oil of the main pump changed?", collection=facts)
    second = chat(http, "And by whom?", first["session_id"])
    assert second["turn"] == 2
    held = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert second["usage"]["cached_tokens"] == held
    assert all(passage["in_session"] for passage in second["passages"])


def test_stream_and_plain_and_stored_are_the_same(http: httpx.Client, facts: str) -> None:
    body = {"message": "What is the rated flow of the main pump?", "collection": facts, "max_tokens": 24}
    events = events_of(http, "/chat", body)
    names = [name for name, _ in events]
    assert names[0] == "passages"
    assert names[-1] == "done"
    done = events[-1][1]
    assert "".join(data["text"] for name, data in events if name == "delta") == done["answer"]
    assert [data for name, data in events if name == "citation"] == done["citations"]
    plain = http.post("/chat", json=body).json()
    assert (plain["answer"], plain["citations"]) == (done["answer"], done["citations"])
    stored = http.get(f"/sessions/{done['session_id']}").json()["turns"][0]
    assert {name: stored[name] for name in done} == done
    assert stored["message"] == body["message"]


def test_nothing_found_is_said_and_not_invented(http: httpx.Client, facts: str) -> None:
    answer = chat(http, "Which football club won the European championship in Lisbon?", collection=facts)
    assert not answer["answerable"]
    assert answer["citations"] == []
    assert answer["passages"] == []
    assert "could not find" in answer["answer"]


def test_an_earlier_subject_is_no_evidence_for_a_new_one(http: httpx.Client, facts: str) -> None:
    first = chat(http, "How often is the oil of the main pump changed?", collection=facts)
    second = chat(http, "Which football club won the European championship in Lisbon?", first["session_id"])
    assert not second["answerable"]
    third = chat(http, "How much does the sluice gate weigh?", first["session_id"])
    assert third["answerable"]
    assert third["usage"]["cached_tokens"] == first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]


def test_an_empty_collection(http: httpx.Client) -> None:
    assert not http.post("/ask", json={"question": "Anything?", "collection": "empty"}).json()["answerable"]


def test_passages_are_cut_to_the_context_and_the_answer_says_so(http: httpx.Client, upload: Upload) -> None:
    text = "\n\n".join(
        f"Valve {i} of the harbour line closes at {i + 20} bar. " + "It is painted green. " * 30 for i in range(30)
    )
    upload(http, "valves.txt", text.encode(), "valves")
    answer = http.post(
        "/ask", json={"question": "At which pressure does valve 7 close?", "collection": "valves", "top_k": 30}
    )
    body = answer.json()
    assert body["usage"]["prompt_tokens"] <= 2048
    assert "left out" in body["notices"][0]


def test_a_conversation_that_outgrows_the_context_goes_on(http: httpx.Client, upload: Upload) -> None:
    text = "\n\n".join(
        f"Valve {i} of the harbour line closes at {i + 20} bar. " + "It is painted green. " * 30 for i in range(30)
    )
    upload(http, "valves.txt", text.encode(), "valves2")
    session_id, notices = None, []
    for i in (3, 6, 9, 12):
        answer = chat(http, f"At which pressure does valve {i} close?", session_id, collection="valves2", top_k=i)
        session_id = answer["session_id"]
        notices += answer["notices"]
        assert answer["usage"]["prompt_tokens"] <= 2048
    assert any("outgrew" in notice for notice in notices)


def test_tenants_never_meet(http: httpx.Client, other: httpx.Client, facts: str) -> None:
    mine = chat(http, "Who is the night warden?", collection=facts)
    session_id = mine["session_id"]
    document_id = mine["passages"][0]["document_id"]
    assert other.get("/documents").json()["documents"] == []
    assert session_id not in str(other.get("/sessions").json())
    for answer in (
        other.get(f"/sessions/{session_id}"),
        other.delete(f"/sessions/{session_id}"),
        other.post("/chat", json={"message": "Who?", "session_id": session_id}),
        other.get(f"/documents/{document_id}"),
        other.delete(f"/documents/{document_id}"),
    ):
        assert answer.status_code == 404
    assert not other.post("/ask", json={"question": "Who is the night warden?", "collection": facts}).json()[
        "answerable"
    ]


def test_a_second_turn_while_one_runs_is_refused(http: httpx.Client, facts: str) -> None:
    session_id = chat(http, "Who is the night warden?", collection=facts)["session_id"]
    first = threading.Thread(
        target=chat, args=(http, "Tell me all about the weir.", session_id), kwargs={"max_tokens": 200}
    )
    first.start()
    time.sleep(0.3)
    refused = http.post("/chat", json={"message": "And now?", "session_id": session_id})
    first.join()
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "session_busy"
    assert chat(http, "Who is the night warden?", session_id)["turn"] == 3


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_stops_the_work(
    http: httpx.Client, service: ServiceProcess, facts: str, stream: bool
) -> None:
    session_id = chat(http, "Who is the night warden?", collection=facts)["session_id"]
    body = {"message": "Tell me all about the weir.", "session_id": session_id, "max_tokens": 1000, "stream": stream}
    headers = dict(http.headers)
    with httpx.Client(base_url=service.url, headers=headers, timeout=0.3) as leaving:
        if stream:
            leave_after_first_word(leaving, body)
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/chat", json=body)
    started = time.monotonic()
    after = chat_when_free(http, session_id)
    assert time.monotonic() - started < 10  # 1,000 tokens would take far longer
    assert after["turn"] == 2  # the abandoned turn was not kept


def leave_after_first_word(http: httpx.Client, body: dict[str, Any]) -> None:
    with http.stream("POST", "/chat", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("event: delta"):
                return


def chat_when_free(http: httpx.Client, session_id: str) -> dict[str, Any]:
    while True:
        answer = http.post("/chat", json={"message": "Who is it?", "session_id": session_id, "max_tokens": 4})
        if answer.status_code != 409:
            found: dict[str, Any] = answer.json()
            return found
        time.sleep(0.05)


def test_deleting_a_document_takes_it_out_of_sessions(http: httpx.Client, upload: Upload) -> None:
    document = upload(
        http, "warden.txt", b"The day warden of the lock is Otto Brandt, who lives at number 12.", "wardens"
    )
    first = chat(http, "Who is the day warden of the lock?", collection="wardens")
    assert first["answerable"]
    assert http.delete(f"/documents/{document['document_id']}").status_code == 204
    stored = http.get(f"/sessions/{first['session_id']}").json()["turns"][0]
    assert stored["passages"] == []
    assert stored["citations"] == []
    second = chat(http, "Who is the day warden of the lock?", first["session_id"])
    assert not second["answerable"]
    assert second["usage"]["cached_tokens"] == 0


def test_forgetting_a_session(http: httpx.Client, facts: str) -> None:
    session_id = chat(http, "Who is the night warden?", collection=facts)["session_id"]
    assert session_id in str(http.get("/sessions").json())
    assert http.delete(f"/sessions/{session_id}").status_code == 204
    assert http.get(f"/sessions/{session_id}").status_code == 404


def test_a_refused_turn_leaves_no_empty_session(http: httpx.Client, facts: str) -> None:
    before = http.get("/sessions").json()
    question = "How often is the oil of the main pump changed? " + "pump oil " * 1500
    assert http.post("/chat", json={"message": question, "collection": facts}).status_code == 422
    assert http.get("/sessions").json() == before


def test_health_metrics_and_request_ids(http: httpx.Client) -> None:
    assert http.get("/health/live").json()["status"] == "ok"
    assert http.get("/health/ready").json()["status"] == "ok"
    text = http.get("/metrics").text
    assert 'snaprag_tokens_total{kind="cached"}' in text
    assert 'snaprag_session_cache_loads{result="hit"}' in text
    assert http.get("/health/live", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"


def test_short_replies_keep_the_subject(http: httpx.Client, facts: str) -> None:
    session_id = chat(http, "How often is the oil of the main pump changed?", collection=facts)["session_id"]
    for reply in ("yes", "yes please", "and then?"):
        answer = chat(http, reply, session_id)
        assert answer["answerable"], reply
        assert "400 hours" in answer["passages"][0]["text"]


def test_an_archive_without_a_question_in_four_bits(models_dir: Path, tmp_path: Path, upload: Upload) -> None:
    """The follow-up goes on from a thinned and quantized cache, and stores a fraction of the bytes."""
    environment = {"SNAPRAG_ARCHIVE": "expected_attention", "SNAPRAG_ARCHIVE_FORMAT": "int4"}
    with (
        ServiceProcess(tmp_path / "data", environment) as running,
        httpx.Client(base_url=running.url, timeout=120) as http,
    ):
        assert upload(http, "weir.md", FACTS.encode())["status"] == "ready"
        first = http.post("/chat", json={"message": "How often is the oil of the main pump changed?"}).json()
        session_id = first["session_id"]
        second = http.post("/chat", json={"message": "Who changes the oil?", "session_id": session_id}).json()
    assert "400" in first["answer"]
    assert second["usage"]["cached_tokens"] >= first["usage"]["prompt_tokens"]
    bits = 8 * first["usage"]["cache_bytes"] / (first["usage"]["prompt_tokens"] * 30 * 3 * 128)
    assert bits < 6
