"""The embedded server's life: its data survives every death, and nobody else's service is disturbed."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from app.errors import InvalidRequestError
from app.sessions import EmbeddedServerError, KVStore, NewCache, StoredCache, connect, open_kv_client, token_digest
from app.sessions.kv_server import server_dir, socket_path
from app.settings import Settings

SERVICE = """
import sys
from pathlib import Path
from app.sessions import KVStore, NewCache, open_kv_client, token_digest
from app.settings import Settings

with open_kv_client(Settings(data_dir=Path(sys.argv[1]))) as client:
    store = KVStore(client, 1000)
    store.publish(store.stage("t", "s", NewCache(1, 0, "f", 3, token_digest([1, 2, 3]), [b"chunk"])))
    print(client.info("server")["process_id"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", kv_memory_mb=64)


@pytest.fixture
def service(settings: Settings) -> Iterator["subprocess.Popen[str]"]:
    """A service in a process of its own, which has saved a cache."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(settings.data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


def server_pid(service: "subprocess.Popen[str]") -> int:
    assert service.stdout is not None
    return int(service.stdout.readline())


def save(client: redis.Redis, chunk: bytes, generation: int = 1) -> None:
    store = KVStore(client, 1000)
    staged = store.stage("t", "s", NewCache(generation, generation - 1, "f", 3, token_digest([1, 2, 3]), [chunk]))
    assert staged is not None
    assert store.publish(staged)


def load(client: redis.Redis) -> list[list[bytes]] | None:
    found = KVStore(client, 1000).load("t", "s", "f", StoredCache.collect)
    return found.segments if found else None


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the server lives on"
        time.sleep(0.02)


def test_a_restart_keeps_the_data(settings: Settings) -> None:
    with open_kv_client(settings) as client:
        save(client, b"kept")
    with open_kv_client(settings) as client:
        assert load(client) == [[b"kept"]]


def test_a_server_that_is_killed_comes_back_with_all_that_was_answered(settings: Settings) -> None:
    with open_kv_client(settings) as client:
        pid = client.info("server")["process_id"]
        save(client, os.urandom(2**20))
        save(client, b"last", 2)
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        deadline = time.monotonic() + 10
        while load(client) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert load(client) == [[b"last"]]


def test_a_second_service_is_refused_and_takes_over_once_the_first_was_killed(
    settings: Settings, service: "subprocess.Popen[str]"
) -> None:
    pid = server_pid(service)
    with pytest.raises(EmbeddedServerError, match="another service uses .*data"), open_kv_client(settings):
        pass
    with connect(settings) as client:
        assert load(client) == [[b"chunk"]]
    service.kill()
    with open_kv_client(settings) as client:
        assert client.info("server")["process_id"] != pid
        assert not psutil.pid_exists(pid)
        assert load(client) == [[b"chunk"]]


def test_the_server_ends_with_its_guard_and_both_come_back(settings: Settings) -> None:
    with open_kv_client(settings) as client:
        save(client, b"kept")
        pid = client.info("server")["process_id"]
        guard = psutil.Process(pid).parent()
        assert guard is not None
        guard.kill()
        wait_for_end(pid)
        deadline = time.monotonic() + 15
        while load(client) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert load(client) == [[b"kept"]]
        pid = client.info("server")["process_id"]
    wait_for_end(pid)


def test_data_that_cannot_be_read_is_given_up_for_a_new_start(settings: Settings) -> None:
    with open_kv_client(settings) as client:
        save(client, b"lost")
    for file in (server_dir(settings.data_dir) / "appendonlydir").iterdir():
        file.write_bytes(b"not what valkey wrote" * 100)
    with open_kv_client(settings) as client:
        assert load(client) is None
        save(client, b"new")
        assert load(client) == [[b"new"]]


def test_a_file_cut_short_loses_only_its_end(settings: Settings) -> None:
    with open_kv_client(settings) as client:
        save(client, b"kept")
        client.set("snaprag:tail", b"x" * 1000, ex=1000)
    tail = max((server_dir(settings.data_dir) / "appendonlydir").glob("*.incr.aof"))
    tail.write_bytes(tail.read_bytes()[:-100])
    with open_kv_client(settings) as client:
        assert load(client) == [[b"kept"]]
        assert client.get("snaprag:tail") is None


def test_a_long_data_folder_gets_a_private_socket_elsewhere(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / ("long" * 30) / "डेटा and spaces %20", kv_memory_mb=64)
    path = socket_path(settings.data_dir)
    assert len(os.fsencode(path)) <= 100
    with open_kv_client(settings) as client:
        save(client, b"here")
        assert load(client) == [[b"here"]]
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.parent.rmdir()


def test_a_socket_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    data_dir = tmp_path / ("long" * 30)
    folder = socket_path(data_dir).parent
    folder.symlink_to(tmp_path)
    try:
        with (
            pytest.raises(EmbeddedServerError, match="not a folder of this user"),
            open_kv_client(Settings(data_dir=data_dir)),
        ):
            pass
    finally:
        folder.unlink()


def test_everything_is_private_and_nothing_listens_on_tcp(settings: Settings) -> None:
    with open_kv_client(settings) as client:
        process = psutil.Process(client.info("server")["process_id"])
        assert process.net_connections("inet") == []
        assert stat.S_IMODE(server_dir(settings.data_dir).stat().st_mode) == 0o700
        assert stat.S_IMODE(socket_path(settings.data_dir).stat().st_mode) == 0o700


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", "redis://host:port"])
def test_a_url_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    settings = Settings(data_dir=tmp_path, redis_url=url)
    with pytest.raises(InvalidRequestError, match="SNAPRAG_REDIS_URL"), open_kv_client(settings):
        pass
