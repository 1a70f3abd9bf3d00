"""A body of bytes as chunks that each say what they are. All is verified before a byte of the body is used.

    magic 4 | version u16 | index u32 | count u32 | body bytes u64 | fingerprint 16 | body 16 | payload 16 | header 8

then the payload. The last four are digests (xxh3): of the fingerprint's text, of the digests of all payloads in order,
of this chunk's payload, and of the header before it. So a chunk of another body is noticed, even one of the same size
and fingerprint. The digests guard against damage and mistakes, not against somebody who can write to the store.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

import xxhash

from kv_compression.errors import CodecError

FORMAT_VERSION = 2
CHUNK_BYTES = 4 * 2**20 - 256  # a value of exactly 2^n bytes costs a quarter more memory in some stores

_MAGIC = b"SKVC"
_HEADER = struct.Struct("<4sHIIQ16s16s16s")
_OVERHEAD = _HEADER.size + 8


def pack_chunks(body: Iterable[memoryview], fingerprint: str, chunk_bytes: int) -> list[bytes]:
    """Chunks of at most `chunk_bytes` (header included) that carry the pieces of the body, each copied once."""
    if chunk_bytes <= _OVERHEAD:
        raise ValueError(f"chunk_bytes ({chunk_bytes}) must be larger than a chunk's header ({_OVERHEAD})")
    payloads = list(_payloads(body, chunk_bytes - _OVERHEAD))
    digests = [_digest(payload) for payload in payloads]
    total = sum(len(piece) for payload in payloads for piece in payload)
    marks = (_digest([fingerprint.encode()]), _digest(digests))
    chunks = []
    for index, (payload, digest) in enumerate(zip(payloads, digests, strict=True)):
        header = _HEADER.pack(_MAGIC, FORMAT_VERSION, index, len(payloads), total, *marks, digest)
        chunks.append(b"".join((header, xxhash.xxh3_64_digest(header), *payload)))
    return chunks


def unpack_chunks(chunks: Sequence[bytes], fingerprint: str) -> bytearray:
    """The body. Raises CodecError unless these are all the chunks of one body, in order, for this fingerprint."""
    if not chunks:
        raise CodecError("there are no chunks")
    total = sum(len(chunk) - _OVERHEAD for chunk in chunks)
    mark = _digest([fingerprint.encode()])
    payloads, digests, bodies = [], [], set()
    for index, chunk in enumerate(chunks):
        written_mark, body, digest, payload = _open(chunk, index, [index, len(chunks), total])
        if written_mark != mark:
            raise CodecError(f"chunk {index} was written for another model or configuration")
        payloads.append(payload)
        digests.append(digest)
        bodies.add(body)
    if bodies != {_digest(digests)}:
        raise CodecError("the chunks belong to different segments")
    return bytearray().join(payloads)


def _open(chunk: bytes, index: int, expected: list[int]) -> tuple[bytes, bytes, bytes, memoryview]:
    """Fingerprint's, body's and payload's digest, and the payload, once the header is right and the payload whole."""
    if len(chunk) <= _OVERHEAD:
        raise CodecError(f"chunk {index} is cut short")
    header, payload = chunk[: _HEADER.size], memoryview(chunk)[_OVERHEAD:]
    magic, version, *place, mark, body, digest = _HEADER.unpack(header)
    if (magic, version) != (_MAGIC, FORMAT_VERSION):
        raise CodecError(f"chunk {index} has another format")
    if chunk[_HEADER.size : _OVERHEAD] != xxhash.xxh3_64_digest(header):
        raise CodecError(f"chunk {index} has a damaged header")
    if place != expected:
        raise CodecError(f"chunk {index} of {expected[1]} is out of place, or one is missing or cut short")
    if digest != _digest([payload]):
        raise CodecError(f"chunk {index} is damaged")
    return mark, body, digest, payload


def _payloads(body: Iterable[memoryview], size: int) -> Iterator[list[memoryview]]:
    """The pieces cut and grouped so that every group but the last has `size` bytes."""
    group: list[memoryview] = []
    room = size
    for whole in body:
        piece = whole
        while len(piece):
            group.append(piece[:room])
            piece, room = piece[room:], room - len(group[-1])
            if room == 0:
                yield group
                group, room = [], size
    if group:
        yield group


def _digest(pieces: Iterable[bytes | memoryview]) -> bytes:
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
