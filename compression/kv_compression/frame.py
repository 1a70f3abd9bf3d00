"""A body of bytes as chunks that each say what they are. Each is verified before a byte of it is read.

    magic 4 | version u16 | index u32 | count u32 | body bytes u64 | fingerprint 16 | body 16 | payload 16 | header 8

then the payload. The last four are digests (xxh3): of the fingerprint's text, of the digests of all payloads in order,
of this chunk's payload, and of the header before it. So a chunk of another body is noticed, even one of the same size
and fingerprint. The digests guard against damage and mistakes, not against somebody who can write to the store.
"""

import struct
from collections.abc import Iterable, Iterator

import xxhash

from kv_compression.errors import CodecError

FORMAT_VERSION = 3
CHUNK_BYTES = 4 * 2**20 - 256  # a value of exactly 2^n bytes costs a quarter more memory in some stores

Chunk = bytes | memoryview

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


class ChunkReader:
    """The body of chunks that come one after another, each verified before a byte of it is read.

    Raises CodecError as soon as one is not what it should be; only `finish` says that all of them belong together.
    """

    def __init__(self, chunks: Iterable[Chunk], fingerprint: str) -> None:
        self._payloads = self._verified(iter(chunks), _digest([fingerprint.encode()]))
        self._rest = memoryview(b"")
        self.total = 0
        self._rest = self._next()

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes."""
        filled = 0
        while filled < len(target):
            if not len(self._rest):
                self._rest = self._next()
            piece = self._rest[: len(target) - filled]
            target[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._rest = self._rest[len(piece) :]

    def finish(self) -> None:
        """Nothing is left, and all chunks were of one body."""
        if len(self._rest) or next(self._payloads, None) is not None:
            raise CodecError("there is more than the description says")

    def _next(self) -> memoryview:
        payload = next(self._payloads, None)
        if payload is None:
            raise CodecError("there are no chunks, or too few")
        return payload

    def _verified(self, chunks: Iterator[Chunk], mark: bytes) -> Iterator[memoryview]:
        bodies: set[bytes] = set()
        digests: list[bytes] = []
        expected: list[int] = []
        size = 0
        for index, chunk in enumerate(chunks):
            place, written_mark, body, digest, payload = _open(chunk, index)
            expected = expected or place[1:]
            if place != [index, *expected]:
                raise CodecError(f"chunk {index} of {expected[0]} is out of place, or one is missing")
            if written_mark != mark:
                raise CodecError(f"chunk {index} was written for another model or configuration")
            self.total = expected[1]
            size += len(payload)
            digests.append(digest)
            bodies.add(body)
            yield payload
        if [len(digests), size] != expected:
            raise CodecError("chunks are missing or cut short")
        if bodies != {_digest(digests)}:
            raise CodecError("the chunks belong to different segments")


def _open(chunk: Chunk, index: int) -> tuple[list[int], bytes, bytes, bytes, memoryview]:
    """Index, count, total; fingerprint's, body's and payload's digest; the payload: once all of it is right."""
    if len(chunk) <= _OVERHEAD:
        raise CodecError(f"chunk {index} is cut short")
    view = memoryview(chunk)
    header, payload = view[: _HEADER.size], view[_OVERHEAD:]
    magic, version, *place, mark, body, digest = _HEADER.unpack(header)
    if (magic, version) != (_MAGIC, FORMAT_VERSION):
        raise CodecError(f"chunk {index} has another format")
    if view[_HEADER.size : _OVERHEAD] != xxhash.xxh3_64_digest(header):
        raise CodecError(f"chunk {index} has a damaged header")
    if digest != _digest([payload]):
        raise CodecError(f"chunk {index} is damaged")
    return place, mark, body, digest, payload


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
