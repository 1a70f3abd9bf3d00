"""The names of a session's keys, and the frame around every chunk that makes a wrong value recognisable.

frame: magic, version, the chunk's index, the payload's length, a digest of the key's name, a digest of all of it.
"""

import struct

from xxhash import xxh3_128_digest

VALUE_BYTES = 4 * 2**20 - 64
"""Largest stored value. One of exactly 2^n bytes costs a quarter more memory under jemalloc; a little less does not."""

_HEADER = struct.Struct("<4sB3xIQ16s16s")
_MAGIC, _VERSION = b"snkv", 1
_DIGEST_AT = _HEADER.size - 16

CHUNK_BYTES = VALUE_BYTES - _HEADER.size
"""Largest payload of a chunk: what is to be given to the codec."""


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


def framed_size(payload_bytes: int) -> int:
    """Bytes of the stored value."""
    return _HEADER.size + payload_bytes


def pack_chunk(key: str, index: int, payload: bytes) -> bytes:
    """The value to store under `key`. Raises ValueError for a payload larger than CHUNK_BYTES."""
    if len(payload) > CHUNK_BYTES:
        raise ValueError(f"A chunk has {len(payload):,} bytes; at most {CHUNK_BYTES:,} can be stored.")
    identity = xxh3_128_digest(key.encode())
    header = _HEADER.pack(_MAGIC, _VERSION, index, len(payload), identity, bytes(16))[:_DIGEST_AT]
    return b"".join((header, _digest(header, payload), payload))


def unpack_chunk(key: str, index: int, value: bytes) -> memoryview:
    """The payload, not copied. Raises FrameError, which says what is wrong."""
    if len(value) < _HEADER.size:
        raise FrameError("shorter than its frame")
    magic, version, stored_index, length, identity, digest = _HEADER.unpack_from(value)
    if (magic, version) != (_MAGIC, _VERSION):
        raise FrameError("not a chunk of this version")
    if identity != xxh3_128_digest(key.encode()) or stored_index != index:
        raise FrameError("the chunk of another key")
    payload = memoryview(value)[_HEADER.size :]
    if length != len(payload):
        raise FrameError("truncated or extended")
    if digest != _digest(value[:_DIGEST_AT], payload):
        raise FrameError("damaged")
    return payload


def _digest(header: bytes, payload: bytes | memoryview) -> bytes:
    # the header carries the key's digest and is short: seeding the payload's digest with it costs no copy
    return xxh3_128_digest(payload, seed=int.from_bytes(xxh3_128_digest(header)[:8], "little"))
