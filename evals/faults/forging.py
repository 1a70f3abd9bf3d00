"""Chunks that are not what was written, under frames and digests that are right for what they say."""

import random
import struct

import xxhash

from app.sessions.kv_frame import framed_size, pack_chunk

CODEC_HEADER = struct.Struct("<4sHIIQQB16s16s16s")
"""Of kv_compression/frame.py: magic, version, index, count, body bytes, payload bytes, planes, and three digests; the
header's own digest follows."""


def flipped(value: bytes, rng: random.Random) -> bytes:
    """With one bit changed."""
    changed, at = bytearray(value), rng.randrange(len(value) * 8)
    changed[at // 8] ^= 1 << at % 8
    return bytes(changed)


def reframed(key: str, value: bytes) -> bytes:
    """The same payload, framed as the chunk `key`."""
    return pack_chunk(key, int(key.rpartition(":")[2]), value[framed_size(0) :])


def forged(key: str, value: bytes, changes: dict[str, int | bytes]) -> bytes:
    """A chunk whose codec header says something else; its digest and its frame are made anew."""
    payload = value[framed_size(0) :]
    names = ("magic", "version", "index", "count", "total", "size", "planes", "mark", "body", "digest")
    fields = dict(zip(names, CODEC_HEADER.unpack_from(payload), strict=True)) | changes
    header = CODEC_HEADER.pack(*fields.values())
    rest = payload[CODEC_HEADER.size + 8 :]
    return pack_chunk(key, int(key.rpartition(":")[2]), header + xxhash.xxh3_64_digest(header) + rest)
