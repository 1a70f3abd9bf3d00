"""Whatever is done to stored values, a load returns what was saved or nothing, and what is damaged is removed."""

import os
import uuid
from collections.abc import Callable

import pytest
import redis
from xxhash import xxh3_128_hexdigest

from app.sessions import KVStore, NewCache, StoredCache, token_digest
from app.sessions.kv_frame import session_prefix
from app.sessions.kv_head import FIELDS, StoredHead, StoredSegment, head_fields

Damage = Callable[[redis.Redis, str, list[str], list[str]], object]


def flip(client: redis.Redis, key: str, position: int) -> None:
    byte = client.getrange(key, position, position)
    client.setrange(key, position, bytes([byte[0] ^ 1]))


def swap(client: redis.Redis, one: str, other: str) -> None:
    first, second = client.get(one), client.get(other)
    client.set(one, second, ex=99)
    client.set(other, first, ex=99)


DAMAGES: dict[str, Damage] = {
    "a bit of the payload": lambda c, p, mine, theirs: flip(c, mine[1], 700),
    "the last byte": lambda c, p, mine, theirs: flip(c, mine[-1], 1047),
    "a bit of the digest": lambda c, p, mine, theirs: flip(c, mine[1], 40),
    "a bit of the magic": lambda c, p, mine, theirs: flip(c, mine[1], 0),
    "the version": lambda c, p, mine, theirs: flip(c, mine[1], 4),
    "padding": lambda c, p, mine, theirs: flip(c, mine[1], 6),
    "the index": lambda c, p, mine, theirs: flip(c, mine[1], 8),
    "the identity": lambda c, p, mine, theirs: flip(c, mine[1], 25),
    "a missing chunk": lambda c, p, mine, theirs: c.delete(mine[1]),
    "a truncated chunk": lambda c, p, mine, theirs: c.set(mine[1], c.getrange(mine[1], 0, 500), ex=99),
    "an empty chunk": lambda c, p, mine, theirs: c.set(mine[1], b"", ex=99),
    "a chunk too long": lambda c, p, mine, theirs: c.append(mine[1], b"x"),
    "a chunk far too long": lambda c, p, mine, theirs: c.setrange(mine[1], 5_000_000, b"x"),
    "swapped chunks": lambda c, p, mine, theirs: swap(c, mine[0], mine[2]),
    "a chunk of an older generation": lambda c, p, mine, theirs: swap(c, mine[0], mine[3]),
    "another tenant's chunk": lambda c, p, mine, theirs: c.set(mine[1], c.get(theirs[1]), ex=99),
    "a chunk of another type": lambda c, p, mine, theirs: (c.delete(mine[1]), c.lpush(mine[1], "x")),
    "another tenant's head": lambda c, p, mine, theirs: c.hset(
        f"{p}:head", mapping=c.hgetall(theirs[0].split(":seg:")[0] + ":head")
    ),
    "a head of another type": lambda c, p, mine, theirs: (c.delete(f"{p}:head"), c.set(f"{p}:head", "x")),
    "a head of garbage": lambda c, p, mine, theirs: c.hset(f"{p}:head", "manifest", os.urandom(200)),
    "a head that is not text": lambda c, p, mine, theirs: c.hset(f"{p}:head", "generation", b"\xff\xfe"),
    "a huge head": lambda c, p, mine, theirs: c.hset(f"{p}:head", "manifest", b"[" * 2_000_000),
    "an older head's generation": lambda c, p, mine, theirs: c.hset(f"{p}:head", "generation", "1"),
    "a head without digest": lambda c, p, mine, theirs: c.hdel(f"{p}:head", "digest"),
    "a head with fewer tokens": lambda c, p, mine, theirs: c.hset(
        f"{p}:head", "manifest", c.hget(f"{p}:head", "manifest").replace(b'"tokens":20', b'"tokens":10')
    ),
}


@pytest.fixture
def prefix() -> str:
    return session_prefix(uuid.uuid4().hex, "s")


def tenant_of(prefix: str) -> str:
    return prefix.split(":")[2]


def saved(store: KVStore, tenant: str) -> list[str]:
    """Two generations of one session, the first one kept: the names of all chunks."""
    names: list[str] = []
    kept: tuple[StoredSegment, ...] = ()
    for generation in (1, 2):
        tokens = list(range(10 * generation))
        chunks = [os.urandom(1000) for _ in range(3)]
        new = NewCache(generation, generation - 1, "f", len(tokens), token_digest(tokens), chunks, kept)
        staged = store.stage(tenant, "s", new)
        assert staged is not None
        assert store.publish(staged)
        kept, names = staged.head.segments, staged.head.keys(staged.prefix)
    return names


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_a_miss_and_the_next_save_works(embedded_client: redis.Redis, prefix: str, damage: Damage) -> None:
    client, store, tenant = embedded_client, KVStore(embedded_client, 1000), tenant_of(prefix)
    mine, theirs = saved(store, tenant), saved(store, f"{tenant}-other")
    assert store.load(tenant, "s", "f", StoredCache.collect) is not None

    damage(client, prefix, mine, theirs)

    assert store.load(tenant, "s", "f", StoredCache.collect) is None
    assert store.counts()["corrupt"] == 1
    assert list(client.scan_iter(f"{prefix}*", count=1000)) == []
    assert store.load(f"{tenant}-other", "s", "f", StoredCache.collect) is not None
    staged = store.stage(tenant, "s", NewCache(3, 0, "f", 5, token_digest(range(5)), [b"new"]))
    assert staged is not None
    assert store.publish(staged)
    found = store.load(tenant, "s", "f", StoredCache.collect)
    assert found is not None
    assert found.segments == [[b"new"]]


FORGED = {
    "no segments": StoredHead(1, "f", 5, "d", ()),
    "a segment without chunks": StoredHead(1, "f", 5, "d", (StoredSegment("1.a", ()),)),
    "a chunk of no size": StoredHead(1, "f", 5, "d", (StoredSegment("1.a", (0,)),)),
    "a negative size": StoredHead(1, "f", 5, "d", (StoredSegment("1.a", (-5, 500)),)),
    "a chunk of a terabyte": StoredHead(1, "f", 5, "d", (StoredSegment("1.a", (2**40,)),)),
    "a hundred thousand chunks": StoredHead(1, "f", 5, "d", (StoredSegment("1.a", (4_000_000,) * 100_000),)),
    "generation zero": StoredHead(0, "f", 5, "d", (StoredSegment("1.a", (500,)),)),
    "negative tokens": StoredHead(1, "f", -5, "d", (StoredSegment("1.a", (500,)),)),
    "chunks that are not there": StoredHead(1, "f", 5, "d", (StoredSegment("1.a", (500,)),)),
}


@pytest.mark.parametrize("head", FORGED.values(), ids=FORGED.keys())
def test_a_forged_head_with_a_right_digest_is_refused(
    embedded_client: redis.Redis, prefix: str, head: StoredHead
) -> None:
    store = KVStore(embedded_client, 1000)
    embedded_client.hset(f"{prefix}:head", mapping=dict(head_fields(prefix, head)))
    assert store.load(tenant_of(prefix), "s", "f", StoredCache.collect) is None
    assert store.counts() == {"corrupt": 1}
    assert not embedded_client.exists(f"{prefix}:head")


def test_a_forged_manifest_of_any_shape_is_refused(embedded_client: redis.Redis, prefix: str) -> None:
    store, manifests = (
        KVStore(embedded_client, 1000),
        ["null", "[]", "7", '"x"', "{}", "[[[[", '{"segments":[[1,2,3]]}'],
    )
    shapes = ('"ab"', "[7]", "[[1,[99]]]", '[["a",7]]')
    manifests += ['{"tokens":1,"token_digest":"d","segments":' + shape + "}" for shape in shapes]
    manifests += ['{"tokens":"1","token_digest":"d","segments":[["a",[99]]]}']
    for manifest in manifests:
        fields = ["1", "f", "99", manifest]
        digest = xxh3_128_hexdigest("\0".join((prefix, *fields)).encode())
        embedded_client.hset(f"{prefix}:head", mapping=dict(zip(FIELDS, [*fields, digest], strict=True)))
        assert store.load(tenant_of(prefix), "s", "f", StoredCache.collect) is None
    assert store.counts() == {"corrupt": len(manifests)}
