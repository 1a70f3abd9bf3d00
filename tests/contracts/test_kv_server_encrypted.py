"""Encrypted caches: nothing readable on the server, and whatever was not encrypted for its place is computed anew."""

import os
import uuid
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable

import pytest
import redis
import structlog
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import ValidationError
from xxhash import xxh3_128_digest

from app.sessions import CHUNK_BYTES, Cipher, KVStore, NewCache, StoredCache, StoredSegment, token_digest
from app.sessions.kv_cipher import SEAL_BYTES, SealError
from app.sessions.kv_frame import FrameError, framed_size, pack_chunk, session_prefix, unpack_chunk
from app.sessions.kv_head import StoredHead, head_fields
from app.settings import Settings

OLD, NEW = bytes(range(32)), bytes(range(100, 132))
SECRET = [b"nobody may read this " * 50, os.urandom(CHUNK_BYTES)]
FRAME_BYTES = framed_size(0)

Damage = Callable[[redis.Redis, list[str], list[str]], object]


@pytest.fixture
def tenant() -> str:
    return uuid.uuid4().hex


def store_of(client: redis.Redis, *keys: bytes) -> KVStore:
    return KVStore(client, 1000, cipher=Cipher(keys) if keys else None)


def save(store: KVStore, tenant: str, session: str = "s", generation: int = 1) -> list[str]:
    """The names of the chunks."""
    new = NewCache(generation, generation - 1, "f", 3, token_digest([1, 2, 3]), SECRET)
    staged = store.stage(tenant, session, new)
    assert staged is not None
    assert store.publish(staged)
    return staged.head.keys(staged.prefix)


def load(store: KVStore, tenant: str) -> list[list[bytes]] | None:
    found = store.load(tenant, "s", "f", StoredCache.collect)
    return found.segments if found else None


def test_it_comes_back_and_nothing_of_it_is_readable(embedded_client: redis.Redis, tenant: str) -> None:
    store = store_of(embedded_client, NEW)
    names = save(store, tenant)
    assert load(store, tenant) == [SECRET]
    values = [embedded_client.get(name) or b"" for name in names]
    assert [len(value) for value in values] == [FRAME_BYTES + len(chunk) + SEAL_BYTES for chunk in SECRET]
    assert b"nobody" not in values[0]
    assert SECRET[1][1000:1032] not in values[1]
    assert len(values[1]) == 4 * 2**20 - 64


def test_a_value_is_aes_256_gcm_under_its_name() -> None:
    value = pack_chunk("name", 0, b"payload", Cipher([NEW]))[FRAME_BYTES:]
    assert AESGCM(NEW).decrypt(value[:12], value[12:], b"name") == b"payload"


def test_no_nonce_comes_twice() -> None:
    cipher = Cipher([NEW])
    assert len({cipher.seal("n", b"")[:12] for _ in range(1000)}) == 1000


def test_keys_are_replaced_one_after_the_other(embedded_client: redis.Redis, tenant: str) -> None:
    save(store_of(embedded_client, OLD), tenant)
    both = store_of(embedded_client, NEW, OLD)
    assert load(both, tenant) == [SECRET]
    save(both, tenant, generation=2)
    assert load(store_of(embedded_client, NEW), tenant) == [SECRET]
    assert load(store_of(embedded_client, OLD), tenant) is None


@pytest.mark.parametrize(("written", "read"), [((NEW,), ()), ((), (NEW,)), ((NEW,), (OLD,))])
def test_another_key_or_none_is_a_miss(
    embedded_client: redis.Redis, tenant: str, written: tuple[bytes, ...], read: tuple[bytes, ...]
) -> None:
    save(store_of(embedded_client, *written), tenant)
    store = store_of(embedded_client, *read)
    assert load(store, tenant) is None
    assert store.counts() == {"corrupt": 1}
    save(store, tenant)
    assert load(store, tenant) == [SECRET]


def forge(client: redis.Redis, name: str, sealed: bytes) -> None:
    """A value whose frame is right in every part that needs no key, with what `sealed` says was encrypted."""

    class Forger(Cipher):
        def seal(self, name: str, payload: bytes) -> bytes:
            return sealed

    client.set(name, pack_chunk(name, int(name.rpartition(":")[2]), b"", Forger([bytes(32)])), ex=99)


def sealed(client: redis.Redis, name: str) -> bytes:
    return (client.get(name) or b"")[FRAME_BYTES:]


DAMAGES: dict[str, Damage] = {
    "a bit of the text": lambda c, mine, theirs: forge(c, mine[0], flipped(sealed(c, mine[0]), 100)),
    "a bit of the nonce": lambda c, mine, theirs: forge(c, mine[0], flipped(sealed(c, mine[0]), 0)),
    "a bit of the tag": lambda c, mine, theirs: forge(c, mine[0], flipped(sealed(c, mine[0]), -1)),
    "another tenant's chunk in a frame of this one": lambda c, mine, theirs: forge(c, mine[0], sealed(c, theirs[0])),
    "the same chunk of an older generation": lambda c, mine, theirs: forge(c, mine[0], sealed(c, theirs[2])),
    "a chunk that is not encrypted": lambda c, mine, theirs: c.set(
        mine[0], pack_chunk(mine[0], 0, SECRET[0] + bytes(28))
    ),
}


def flipped(value: bytes, at: int) -> bytes:
    changed = bytearray(value)
    changed[at] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_what_somebody_put_there_with_right_digests_is_a_miss(
    embedded_client: redis.Redis, tenant: str, damage: Damage
) -> None:
    store = store_of(embedded_client, NEW)
    older = store.stage(tenant, "s", NewCache(1, 0, "f", 3, token_digest([1, 2, 3]), SECRET))
    assert older is not None
    theirs = [*save(store, f"{tenant}-other"), *older.head.keys(older.prefix)]
    kept = {name: embedded_client.get(name) or b"" for name in theirs}
    mine = save(store, tenant)
    for name, value in kept.items():
        embedded_client.set(name, value, ex=99)
    damage(embedded_client, mine, theirs)
    assert load(store, tenant) is None
    assert store.counts() == {"corrupt": 1}


def test_a_value_put_back_unchanged_is_still_right(embedded_client: redis.Redis, tenant: str) -> None:
    """The control: the forger's frame itself is not what is refused."""
    store = store_of(embedded_client, NEW)
    name = save(store, tenant)[0]
    forge(embedded_client, name, sealed(embedded_client, name))
    assert load(store, tenant) == [SECRET]


def test_a_head_made_without_the_key_is_refused(embedded_client: redis.Redis, tenant: str) -> None:
    store, prefix = store_of(embedded_client, NEW), session_prefix(tenant, "s")
    save(store, tenant)
    segment = StoredSegment("1.x", (500,))
    forged = StoredHead(7, "f", 3, token_digest([1, 2, 3]), (segment,))
    for fields in (head_fields(prefix, forged), head_fields(prefix, forged, Cipher([OLD]))):
        embedded_client.hset(f"{prefix}:head", mapping=dict(fields))
        assert load(store, tenant) is None
    assert store.counts() == {"corrupt": 2}


@pytest.mark.parametrize("length", [0, 11, 27])
def test_what_is_shorter_than_a_seal_is_refused(length: int) -> None:
    with pytest.raises(SealError, match="shorter"):
        Cipher([NEW]).open("name", bytes(length))


def test_an_encrypted_chunk_says_why_it_is_refused() -> None:
    with pytest.raises(FrameError, match="no key is set"):
        unpack_chunk("k", 0, pack_chunk("k", 0, b"x", Cipher([NEW])))
    with pytest.raises(FrameError, match="not encrypted"):
        unpack_chunk("k", 0, pack_chunk("k", 0, b"x"), Cipher([NEW]))


def test_keys_are_read_from_hex_and_base64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNAPRAG_KV_KEY", f"{NEW.hex()}, {b64encode(OLD).decode()},{urlsafe_b64encode(NEW).decode()}")
    assert [key.get_secret_value() for key in Settings().kv_key] == [NEW, OLD, NEW]
    monkeypatch.setenv("SNAPRAG_KV_KEY", "")
    assert Settings().kv_key == ()


@pytest.mark.parametrize("text", ["secretsecret", NEW.hex()[:-2], NEW.hex()[:-1] + "g", b64encode(OLD[:31]).decode()])
def test_a_wrong_key_is_refused_without_repeating_it(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SNAPRAG_KV_KEY", text)
    with pytest.raises(ValidationError, match="32 bytes") as caught:
        Settings()
    assert text not in str(caught.value)
    with pytest.raises(ValueError, match="32 bytes"):
        Cipher([b"short"])


def test_no_key_is_seen_in_logs_or_errors(
    embedded_client: redis.Redis, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNAPRAG_KV_KEY", NEW.hex())
    settings = Settings()
    with structlog.testing.capture_logs() as logs:
        save(store_of(embedded_client, OLD), tenant)
        cipher = Cipher([key.get_secret_value() for key in settings.kv_key])
        assert load(KVStore(embedded_client, 1000, cipher=cipher), tenant) is None
    assert logs
    said = f"{logs} {settings!r} {settings.model_dump()} {settings.model_dump_json()} {cipher!r} {vars(cipher)}"
    for form in (NEW.hex(), repr(NEW), b64encode(NEW).decode(), OLD.hex(), repr(OLD)):
        assert form not in said


def test_the_frames_digest_alone_would_not_have_noticed() -> None:
    """Why there is a cipher: whoever writes to the server can make every digest right."""
    value = pack_chunk("k", 0, b"forged")
    assert value[20:36] == xxh3_128_digest(b"k")
    assert bytes(unpack_chunk("k", 0, value)) == b"forged"
