"""The names of a session's keys, and the frame around every chunk that makes a wrong value recognisable.

frame: magic, version, the chunk's index, the payload's length, a digest of the key's name, a digest of all of it. Of an
encrypted chunk, the payload is what the cipher made.
"""

import struct

from xxhash import xxh3_128_digest

from app.sessions.kv_cipher import SEAL_BYTES, Cipher, SealError

VALUE_BYTES = 4 * 2**20 - 64
"""Largest stored value. One of exactly 2^n bytes costs a quarter more memory under jemalloc; a little less does not."""

_HEADER = struct.Struct("<4sB3xIQ16s16s")
_MAGIC, _PLAIN, _SEALED = b"snkv", 1, 2
_DIGEST_AT = _HEADER.size - 16

CHUNK_BYTES = VALUE_BYTES - _HEADER.size - SEAL_BYTES
"""Largest payload of a chunk, encrypted or not: what is to be given to the codec."""


class FrameError(ValueError):
    """A stored value is not the chunk that was written under its name."""


def session_prefix(tenant: str, session_id: str) -> str:
    """Common start of a session's keys; the braces keep them in one cluster slot.

    The tenant's length comes first, so that no choice of tenant and session reads as another pair.
    """
    return f"snaprag:{{{len(tenant)}:{tenant}:{session_id}}}"


def parse_prefix(prefix: str) -> tuple[str, str]:
    """The tenant and the session. Raises ValueError for what `session_prefix` does not make."""
    length, _, names = prefix.removeprefix("snaprag:{").removesuffix("}").partition(":")
    tenant, session_id = names[: int(length)], names[int(length) + 1 :]
    if session_prefix(tenant, session_id) != prefix:
        raise ValueError(f"{prefix!r} is not the start of a session's keys.")
    return tenant, session_id


def framed_size(payload_bytes: int, cipher: Cipher | None = None) -> int:
    """Bytes of the stored value."""
    return _HEADER.size + payload_bytes + (SEAL_BYTES if cipher else 0)


def pack_chunk(key: str, index: int, payload: bytes, cipher: Cipher | None = None) -> bytes:
    """The value to store under `key`, encrypted if there is a cipher.

    Raises ValueError for a payload larger than CHUNK_BYTES.
    """
    if len(payload) > CHUNK_BYTES:
        raise ValueError(f"A chunk has {len(payload):,} bytes; at most {CHUNK_BYTES:,} can be stored.")
    identity = xxh3_128_digest(key.encode())
    payload = cipher.seal(key, payload) if cipher else payload
    header = _HEADER.pack(_MAGIC, _version(cipher), index, len(payload), identity, bytes(16))[:_DIGEST_AT]
    return b"".join((header, _digest(header, payload), payload))


def unpack_chunk(key: str, index: int, value: bytes, cipher: Cipher | None = None) -> memoryview:
    """The payload, not copied unless it is decrypted. With a cipher, what is not encrypted is refused.

    Raises FrameError, which says what is wrong.
    """
    if len(value) < _HEADER.size:
        raise FrameError("shorter than its frame")
    magic, version, stored_index, length, identity, digest = _HEADER.unpack_from(value)
    if magic != _MAGIC or version not in (_PLAIN, _SEALED):
        raise FrameError("not a chunk of this version")
    if version != _version(cipher):
        raise FrameError("not encrypted" if cipher else "encrypted, and no key is set")
    if identity != xxh3_128_digest(key.encode()) or stored_index != index:
        raise FrameError("the chunk of another key")
    payload = memoryview(value)[_HEADER.size :]
    if length != len(payload):
        raise FrameError("truncated or extended")
    if digest != _digest(value[:_DIGEST_AT], payload):
        raise FrameError("damaged")
    try:
        return memoryview(cipher.open(key, payload)) if cipher else payload
    except SealError as error:
        raise FrameError(str(error)) from error


def _version(cipher: Cipher | None) -> int:
    return _SEALED if cipher else _PLAIN


def _digest(header: bytes, payload: bytes | memoryview) -> bytes:
    # the header carries the key's digest and is short: seeding the payload's digest with it costs no copy
    return xxh3_128_digest(payload, seed=int.from_bytes(xxh3_128_digest(header)[:8], "little"))
