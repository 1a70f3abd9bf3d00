"""Turns of a real service whose caches are encrypted and have a quota."""

import time
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from app.sessions.kv_server import socket_path
from benchmarks.service import ServiceProcess

KEY = "00112233445566778899aabbccddeeff" * 2
TEXT = b"The sluice gate of Harrow Weir weighs 900 kilograms and opens in seven minutes.\n" * 8


def turn(http: httpx.Client, message: str, session: str | None = None) -> dict[str, Any]:
    answer = http.post("/chat", json={"message": message, "max_tokens": 4, "session_id": session})
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


def test_encrypted_sessions_go_beyond_the_quota_and_every_turn_answers(models_dir: Path, tmp_path: Path) -> None:
    small = {"SNAPRAG_ARCHIVE": "full", "SNAPRAG_ARCHIVE_FORMAT": "int8", "SNAPRAG_API_KEYS": ""}
    environment = {**small, "SNAPRAG_KV_KEY": KEY, "SNAPRAG_KV_TENANT_MB": "8"}
    with ServiceProcess(tmp_path, environment) as service, httpx.Client(base_url=service.url, timeout=120) as http:
        assert http.post("/documents", files={"file": ("weir.txt", TEXT)}).status_code == 202
        while any(item["status"] in ("queued", "processing") for item in http.get("/documents").json()["documents"]):
            time.sleep(0.05)
        made = [turn(http, "How much does the sluice gate weigh?") for _ in range(3)]
        followed = [turn(http, "And how long does it take to open?", made[i]["session_id"]) for i in (2, 0)]
        assert followed[0]["usage"]["cached_tokens"] > 200, "the last one is there"
        assert followed[1]["usage"]["cached_tokens"] == 0, "the first one has gone"
        metrics = text_string_to_metric_families(http.get("/metrics").text)
        (held,) = [family.samples[0].value for family in metrics if family.name == "snaprag_kv_bytes"]
        with Redis(unix_socket_path=str(socket_path(tmp_path))) as client:
            chunks = [client.get(key) or b"" for key in client.scan_iter("snaprag:*:seg:*", count=1000)]
    assert {chunk[:5] for chunk in chunks} == {b"snkv\x02"}, "encrypted"
    assert 2**20 < held == sum(map(len, chunks)) <= 8 * 2**20
    assert all(answer["usage"]["cache_bytes"] > 2**20 for answer in made)
    log = service.log.read_text()
    assert "kv_quota_exceeded" in log
    assert KEY not in log
