"""Quotas in bytes: who goes, who stays, and that the sum says what the server holds, whatever happened to it."""

import os
import time
import uuid
from collections.abc import Iterator

import pytest
import redis

from app.sessions import CHUNK_BYTES, KVStore, NewCache, Quotas, StoredCache, open_kv_client, token_digest
from app.sessions.kv_frame import framed_size, parse_prefix, session_prefix
from app.sessions.kv_usage import Usage
from app.settings import Settings

KIB = 2**10
TENANT = "täñant:seg:}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    with open_kv_client(Settings(data_dir=tmp_path_factory.mktemp("quota"), kv_memory_mb=256)) as client:
        yield client


@pytest.fixture
def client(shared: redis.Redis) -> redis.Redis:
    shared.flushall()
    return shared


def save(store: KVStore, tenant: str, session: str, kib: int, generation: int = 1) -> bool:
    """A cache whose chunk has `kib` KiB with its frame."""
    chunk = os.urandom(kib * KIB - framed_size(0))
    staged = store.stage(tenant, session, NewCache(generation, generation - 1, "f", 3, token_digest([1]), [chunk]))
    return staged is not None and store.publish(staged)


def held(store: KVStore, *names: tuple[str, str]) -> list[bool]:
    return [store.load(tenant, session, "f", StoredCache.collect) is not None for tenant, session in names]


def truth(client: redis.Redis) -> int:
    """Bytes of all chunks, asked of the server one by one."""
    return sum(client.strlen(key) for key in client.scan_iter("snaprag:*}:seg:*", count=1000))


def repaired(client: redis.Redis) -> int | None:
    """The sum as a process finds it that has not repaired it yet."""
    return KVStore(client, 1000).held_bytes()


def test_beyond_a_tenants_quota_its_least_recently_used_session_goes(client: redis.Redis) -> None:
    store = KVStore(client, 1000, Quotas(tenant=100 * KIB))
    assert all(save(store, "a", session, 30) for session in ("1", "2", "3"))
    assert save(store, "b", "1", 90)
    assert held(store, ("a", "1")) == [True]  # used again: now "2" is the oldest
    assert save(store, "a", "4", 30)
    assert held(store, ("a", "1"), ("a", "2"), ("a", "3"), ("a", "4"), ("b", "1")) == [True, False, True, True, True]
    assert store.held_bytes() == truth(client) == 180 * KIB
    assert not list(client.scan_iter(f"{session_prefix('a', '2')}*", count=1000))
    assert store.counts("account") == {"recorded": 4, "made_room": 1}


def test_beyond_the_whole_quota_the_oldest_of_all_tenants_go(client: redis.Redis) -> None:
    store = KVStore(client, 1000, Quotas(tenant=1000 * KIB, total=100 * KIB))
    for tenant in "abc":
        assert save(store, tenant, "s", 30)
    assert save(store, "d", "s", 70)
    assert held(store, *((tenant, "s") for tenant in "abcd")) == [False, False, True, True]
    assert store.held_bytes() == truth(client) == 100 * KIB


def test_what_goes_for_the_tenant_counts_for_the_whole(client: redis.Redis) -> None:
    store = KVStore(client, 1000, Quotas(tenant=60 * KIB, total=90 * KIB))
    assert save(store, "old", "s", 30)
    assert save(store, "a", "1", 30)
    assert save(store, "a", "2", 30)
    assert save(store, "a", "3", 30)
    assert held(store, ("old", "s"), ("a", "1"), ("a", "2"), ("a", "3")) == [True, False, True, True]


def test_a_session_that_grows_pushes_others_out_but_never_itself(client: redis.Redis) -> None:
    store = KVStore(client, 1000, Quotas(tenant=100 * KIB))
    assert save(store, "a", "grows", 40)
    assert save(store, "a", "other", 40)
    assert save(store, "a", "grows", 90, generation=2)
    assert held(store, ("a", "grows"), ("a", "other")) == [True, False]
    assert store.held_bytes() == truth(client) == 90 * KIB


def test_a_cache_larger_than_the_quota_is_not_kept_and_nobody_goes_for_it(client: redis.Redis) -> None:
    store = KVStore(client, 1000, Quotas(tenant=100 * KIB))
    assert save(store, "a", "1", 50)
    assert save(store, "a", "2", 50)
    assert not save(store, "a", "1", 101, generation=2)
    assert store.counts("stage") == {"stored": 2, "too_large": 1}
    assert held(store, ("a", "1"), ("a", "2")) == [True, True]
    assert save(store, "a", "1", 50, generation=2)


def test_replacing_and_dropping_change_the_sum(client: redis.Redis) -> None:
    store = KVStore(client, 1000)
    assert save(store, "a", "s", 50)
    assert save(store, "a", "s", 20, generation=2)
    assert store.held_bytes() == truth(client) == 20 * KIB
    assert store.drop("a", "s")
    assert store.held_bytes() == truth(client) == 0
    assert not list(client.scan_iter("*"))


def test_what_expires_leaves_the_sum_without_a_repair(client: redis.Redis) -> None:
    long, short = KVStore(client, 1000), KVStore(client, 1)
    assert save(long, "a", "stays", 20)
    assert save(short, "a", "goes", 50)
    assert long.held_bytes() == 70 * KIB
    deadline = time.monotonic() + 10
    while truth(client) > 20 * KIB and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.1)  # the account is written a moment after the chunks
    assert long.held_bytes() == truth(client) == 20 * KIB


@pytest.mark.parametrize("damage", ["lost", "sums lost", "dates lost", "wrong types", "garbage", "negative"])
def test_a_damaged_account_is_repaired_from_what_is_there(client: redis.Redis, damage: str) -> None:
    store = KVStore(client, 1000)
    for session in ("1", "2", "3"):
        assert save(store, TENANT, session, 20)
    last, sizes, sums = (f"snaprag:{{usage}}:{name}" for name in ("last", "sizes", "sums"))
    if damage == "lost":
        client.delete(last, sizes, sums)
    elif damage == "sums lost":
        client.delete(sums)
    elif damage == "dates lost":
        client.delete(last)
    elif damage == "wrong types":
        client.delete(last, sizes, sums)
        client.rpush(last, "x")
        client.set(sizes, "x")
        client.zadd(sums, {"x": 1})
    elif damage == "garbage":
        client.hset(sizes, "x", "y")
        client.hset(sizes, session_prefix(TENANT, "1"), "-7:")
        client.hset(sums, "all", "z")
        for name in (b"\xff", "not a session", "snaprag:{1:t:s}:head"):
            client.hset(sizes, name, "700:t")  # type: ignore[arg-type]
            client.zadd(last, {name: 9e9})
            client.zadd(last, {f"only dated {name!r}": 9e9})
    else:
        client.hset(sums, "all", "-1e300")
    assert save(KVStore(client, 1000, Quotas(total=1000 * KIB)), "b", "s", 10)
    assert save(KVStore(client, 1000, Quotas(tenant=100)), "t", "none", 1) is False
    assert held(store, ("b", "s"), (TENANT, "1")) == [True, True]
    assert repaired(client) == truth(client) == 70 * KIB
    assert all(0 < client.ttl(key) <= 1060 for key in (last, sizes, sums))
    assert client.zcard(last) == client.hlen(sizes) == 4
    strict = KVStore(client, 1000, Quotas(tenant=60 * KIB))
    assert save(strict, TENANT, "4", 20)
    assert repaired(client) == truth(client) == 70 * KIB


def test_what_was_evicted_or_never_published_is_found_by_a_repair(client: redis.Redis) -> None:
    store = KVStore(client, 1000)
    for session in ("1", "2"):
        assert save(store, "a", session, 20)
    client.delete(*client.scan_iter(f"{session_prefix('a', '1')}:seg:*", count=1000))
    staged = store.stage("a", "killed", NewCache(1, 0, "f", 3, token_digest([1]), [b"x" * 5000]))
    assert staged is not None
    assert repaired(client) == truth(client) == 20 * KIB + framed_size(5000)
    # and it can go for others, though it has no head
    assert save(KVStore(client, 1000, Quotas(total=40 * KIB)), "b", "s", 40)
    assert truth(client) == 40 * KIB


def test_a_session_used_meanwhile_is_not_forgotten(client: redis.Redis) -> None:
    usage = Usage(client, 1000, Quotas(tenant=100))
    usage.record(session_prefix("a", "old"), 60)
    (excess,) = usage.record(session_prefix("a", "new"), 60)
    assert parse_prefix(excess.prefix) == ("a", "old")
    usage.touch(excess.prefix)
    usage.forget(excess.prefix, excess.last_use)
    assert usage.record(session_prefix("a", "new"), 60)[0].prefix == excess.prefix


def test_names_that_are_no_sessions_are_never_dropped(client: redis.Redis) -> None:
    usage = Usage(client, 1000, Quotas(total=100))
    usage.record(session_prefix("a", "old"), 60)
    for name in (b"\xff", b"not a session"):
        client.hset("snaprag:{usage}:sizes", name, "1:t")  # type: ignore[arg-type]
        client.zadd("snaprag:{usage}:last", {name: 5e9})
        client.zadd("snaprag:{usage}:last", {session_prefix("a", "old"): 6e9})
    assert [excess.prefix for excess in usage.record(session_prefix("a", "new"), 60)] == [session_prefix("a", "old")]


def test_the_sum_is_within_a_percent_of_the_servers_memory(client: redis.Redis) -> None:
    before = client.info("memory")["used_memory_dataset"]
    store = KVStore(client, 1000, Quotas(total=48 * 2**20))
    for number in range(10):
        new = NewCache(1, 0, "f", 3, token_digest([1]), [os.urandom(CHUNK_BYTES), os.urandom(CHUNK_BYTES)])
        staged = store.stage("a", str(number), new)
        assert staged is not None
        assert store.publish(staged)
    assert store.held_bytes() == truth(client)
    in_memory = sum(client.memory_usage(key) for key in client.scan_iter("*", count=1000))
    assert store.held_bytes() == pytest.approx(in_memory, rel=0.01)
    assert store.held_bytes() == pytest.approx(client.info("memory")["used_memory_dataset"] - before, rel=0.01)
    assert store.held_bytes() <= 48 * 2**20


@pytest.mark.parametrize("name", ["", "snaprag:{x:a:b}", "snaprag:{9:a:b}", "snaprag:{1:a}", "snaprag:{1:a:b}:head"])
def test_a_name_of_other_keys_is_no_session(name: str) -> None:
    with pytest.raises(ValueError, match=r"session's keys|invalid literal"):
        parse_prefix(name)


def test_the_tenant_and_session_come_back_from_a_name() -> None:
    for tenant in ("a", "a:b", "}", uuid.uuid4().hex, "ä1:", ""):
        assert parse_prefix(session_prefix(tenant, "s:1}")) == (tenant, "s:1}")
