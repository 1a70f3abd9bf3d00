"""A server that stops, dies, fills up or is not there: bounded delays, no errors, and nothing wrong afterwards."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from app.sessions import KVStore, NewCache, StoredCache, open_kv_client, token_digest
from app.settings import Settings

TIMEOUT_MS = 250


def new_cache(generation: int, chunks: list[bytes]) -> NewCache:
    return NewCache(generation, generation - 1, "f", 4, token_digest(range(4)), chunks)


def save(store: KVStore, new: NewCache, session_id: str = "s") -> bool:
    staged = store.stage("t", session_id, new)
    return staged is not None and store.publish(staged)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[redis.Redis]:
    """An embedded server of the test's own, with room for 64 MiB."""
    with open_kv_client(Settings(data_dir=tmp_path, kv_memory_mb=64, kv_timeout_ms=TIMEOUT_MS)) as client:
        yield client


@pytest.fixture
def server_pid(client: redis.Redis) -> int:
    return int(client.info("server")["process_id"])


def wait_until_back(client: redis.Redis, old_pid: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if client.info("server")["process_id"] != old_pid:
                return
        except redis.RedisError:
            time.sleep(0.02)
    raise AssertionError("the server did not come back")


def wait_until_found_back(store: KVStore) -> None:
    deadline = time.monotonic() + 10
    while store.is_away:
        assert time.monotonic() < deadline, "the breaker did not close"
        time.sleep(0.01)


def test_a_drop_that_failed_is_made_up_for(client: redis.Redis, server_pid: int) -> None:
    store = KVStore(client, 1000, probe_s=0.1)
    assert save(store, new_cache(1, [b"a"]))
    assert save(store, new_cache(1, [b"b"]), "other")
    os.kill(server_pid, signal.SIGSTOP)
    try:
        assert not store.drop("t", "s")
    finally:
        os.kill(server_pid, signal.SIGCONT)
    wait_until_found_back(store)
    assert store.load("t", "other", "f", StoredCache.collect) is not None
    assert not list(client.scan_iter("snaprag:*:s}*"))


def test_a_server_killed_during_a_save_leaves_the_last_cache(client: redis.Redis, server_pid: int) -> None:
    store = KVStore(client, 1000, probe_s=0.1)
    assert save(store, new_cache(1, [b"first", b"second"]))
    chunks = [os.urandom(2**20)] * 48
    killer = threading.Timer(0.02, os.kill, (server_pid, signal.SIGKILL))
    killer.start()
    started = time.monotonic()
    while save(store, new_cache(2, chunks), "other"):
        store.drop("t", "other")
    killer.join()
    assert time.monotonic() - started < 3
    wait_until_back(client, server_pid)
    wait_until_found_back(store)
    found = store.load("t", "s", "f", StoredCache.collect)
    assert found is not None
    assert found.segments == [[b"first", b"second"]]
    assert all(client.ttl(key) > 0 for key in client.scan_iter("*", count=1000))


def test_eviction_is_a_miss_and_never_a_partial_cache(client: redis.Redis) -> None:
    store = KVStore(client, 1000)
    saved = {f"s{i}": [os.urandom(2**20) for _ in range(8)] for i in range(12)}
    for session, chunks in saved.items():
        save(store, new_cache(1, chunks), session)
    assert client.info("stats")["evicted_keys"] > 0
    loaded = {session: store.load("t", session, "f", StoredCache.collect) for session in saved}
    assert None in loaded.values()
    assert all(cache.segments == [saved[session]] for session, cache in loaded.items() if cache is not None)
    for session in saved:
        assert store.drop("t", session)
    assert save(store, new_cache(1, [b"there is room again"]))


def test_a_chunk_evicted_between_write_and_publish_is_noticed(client: redis.Redis) -> None:
    store = KVStore(client, 1000)
    assert save(store, new_cache(1, [b"old"]))
    staged = store.stage("t", "s", new_cache(2, [b"a", b"b"]))
    assert staged is not None
    client.delete(staged.head.keys(staged.prefix)[0])
    assert not store.publish(staged)
    assert store.counts("publish") == {"published": 1, "incomplete": 1}
    found = store.load("t", "s", "f", StoredCache.collect)
    assert found is not None
    assert found.segments == [[b"old"]]


def test_a_drop_removes_the_chunks_of_an_evicted_index_and_nothing_of_another_session(client: redis.Redis) -> None:
    store = KVStore(client, 1000)
    for session in ("evicted", "mixed up", "mine"):
        assert save(store, new_cache(1, [b"a", b"b"]), session)
    mine = set(client.scan_iter("snaprag:*:mine}:*"))
    index = {name: next(client.scan_iter(f"snaprag:*:{name}}}:chunks")) for name in ("evicted", "mixed up", "mine")}
    client.delete(index["evicted"])
    client.copy(index["mine"], index["mixed up"], replace=True)
    assert store.drop("t", "evicted")
    assert save(store, new_cache(2, [b"c"]), "mixed up")
    client.sadd(index["mixed up"], *mine)
    assert store.drop("t", "mixed up")
    left = set(client.scan_iter("*"))
    assert mine <= left
    assert not any(b":evicted}" in key for key in left)


def test_staged_chunks_of_a_turn_that_was_not_kept_are_removed(client: redis.Redis) -> None:
    store = KVStore(client, 1000)
    assert save(store, new_cache(1, [b"old"]))
    before = set(client.scan_iter("*"))
    refused = store.stage("t", "s", new_cache(2, [b"a", b"b"]))
    of_no_session = store.stage("t", "deleted", new_cache(1, [b"a"]))
    assert refused is not None
    assert of_no_session is not None
    assert store.discard(refused)
    assert store.discard(of_no_session)
    assert set(client.scan_iter("*")) == before
    found = store.load("t", "s", "f", StoredCache.collect)
    assert found is not None
    assert found.segments == [[b"old"]]


def test_a_full_server_refuses_and_the_last_cache_stays(client: redis.Redis) -> None:
    store = KVStore(client, 1000)
    assert save(store, new_cache(1, [b"a"]))
    client.config_set("maxmemory-policy", "noeviction")
    assert store.stage("t", "s", new_cache(2, [bytes(2**20)] * 100)) is None
    assert store.counts("stage") == {"stored": 1, "refused": 1}
    found = store.load("t", "s", "f", StoredCache.collect)
    assert found is not None
    assert found.segments == [[b"a"]]


def test_a_read_only_server_serves_and_refuses(client: redis.Redis) -> None:
    store = KVStore(client, 1000)
    assert save(store, new_cache(1, [b"a"]))
    client.config_set("min-replicas-to-write", 1)
    assert store.stage("t", "s", new_cache(2, [b"b"])) is None
    assert store.load("t", "s", "f", StoredCache.collect) is None
    client.config_set("min-replicas-to-write", 0)
    assert store.load("t", "s", "f", StoredCache.collect) is not None


def test_the_deadline_bounds_an_operation_of_many_round_trips(client: redis.Redis) -> None:
    store = KVStore(client, 1000)
    assert save(store, new_cache(1, [b"a"] * 12))
    hurried = KVStore(client, 1000, timeout_s=0.0)
    assert hurried.load("t", "s", "f", StoredCache.collect) is None
    assert hurried.counts() == {"timeout": 1}


def test_a_server_that_sends_a_byte_now_and_then_is_left(tmp_path: Path) -> None:
    connections: list[threading.Thread] = []

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(b"+")
                time.sleep(0.02)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connections.append(threading.Thread(target=drip, args=[listener.accept()[0]], daemon=True))
                connections[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        settings = Settings(data_dir=tmp_path, redis_url=f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        with open_kv_client(settings) as client, ThreadPoolExecutor(2) as pool:
            store = KVStore(client, 1000, timeout_s=0.4)
            started = time.monotonic()
            loads = [pool.submit(store.load, "t", "s", "f", StoredCache.collect)]
            # this one is in the middle of a read when the first one's time is over
            time.sleep(0.2)
            loads.append(pool.submit(store.load, "t", "s", "f", StoredCache.collect))
            assert [load.result() for load in loads] == [None, None]
            assert time.monotonic() - started < 1.0
            assert sum(store.counts().values()) == 2
            for connection in connections:
                connection.join(3)
            assert not any(connection.is_alive() for connection in connections)
            assert len(connections) >= 2


def test_an_external_server_may_come_later(tmp_path: Path, client: redis.Redis) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = Settings(data_dir=tmp_path, redis_url=f"redis://127.0.0.1:{port}/0", kv_timeout_ms=TIMEOUT_MS)
    with open_kv_client(settings) as external:
        store = KVStore(external, 1000, probe_s=0.1)
        started = time.monotonic()
        assert store.load("t", "s", "f", StoredCache.collect) is None
        assert not store.drop("t", "s")
        assert time.monotonic() - started < 1
        assert store.counts() == {"unreachable": 1}
        # the embedded server plays the one that comes up late
        client.config_set("bind", "127.0.0.1")
        client.config_set("port", port)
        wait_until_found_back(store)
        assert save(store, new_cache(1, [b"a"]))
        assert store.load("t", "s", "f", StoredCache.collect) is not None


def test_a_server_that_speaks_another_protocol_is_a_miss(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.close()

        threading.Thread(target=answer, daemon=True).start()
        settings = Settings(data_dir=tmp_path, redis_url=f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        with open_kv_client(settings) as client:
            store = KVStore(client, 1000)
            assert store.load("t", "s", "f", StoredCache.collect) is None
            assert "hit" not in store.counts()
