"""A body of bytes as chunks that each say what they are. Each is verified before a byte of it is read.

    magic 4 | version u16 | index u32 | count u32 | body bytes u64 | payload bytes u64 | planes u8
    | fingerprint 16 | body 16 | payload 16 | header 8

then the payload. The last four are digests (xxh3): of the fingerprint's text, of the digests of all payloads in order,
of this chunk's payload as it is stored, and of the header before it. So a chunk of another body is noticed, even one of
the same size and fingerprint. The digests guard against damage and mistakes, not against somebody who can write to the
store. `planes` is 0 for a payload that is stored as it is; else it is compressed (`lossless.py`), and the payload bytes
are those that come out, at most CHUNK_BYTES.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import xxhash

from kv_compression.errors import CodecError
from kv_compression.lossless import compress, expand

FORMAT_VERSION = 4
CHUNK_BYTES = 4 * 2**20 - 256  # a value of exactly 2^n bytes costs a quarter more memory in some stores

Chunk = bytes | memoryview

_MAGIC = b"SKVC"
_HEADER = struct.Struct("<4sHIIQQB16s16s16s")
_OVERHEAD = _HEADER.size + 8


class _Header(NamedTuple):
    place: int
    chunks: int
    total: int
    size: int
    planes: int
    mark: bytes
    body: bytes
    digest: bytes


def pack_chunks(body: Iterable[memoryview], fingerprint: str, chunk_bytes: int, *, planes: int = 0) -> list[bytes]:
    """Chunks of at most `chunk_bytes` (header included) that carry the pieces of the body.

    planes: compress each payload, as numbers of so many bytes; 0 stores them as they are, each piece copied once.
    """
    if chunk_bytes <= _OVERHEAD:
        raise ValueError(f"chunk_bytes ({chunk_bytes}) must be larger than a chunk's header ({_OVERHEAD})")
    size = (min(chunk_bytes, CHUNK_BYTES) if planes else chunk_bytes) - _OVERHEAD
    whole = list(_payloads(body, size))
    packed = [_packed(payload, planes) for payload in whole]
    sizes = [sum(map(len, payload)) for payload in whole]
    digests = [_digest(payload) for payload, _ in packed]
    marks = (_digest([fingerprint.encode()]), _digest(digests))
    chunks = []
    for index, (payload, coding) in enumerate(packed):
        fields = _Header(index, len(packed), sum(sizes), sizes[index], coding, *marks, digests[index])
        header = _HEADER.pack(_MAGIC, FORMAT_VERSION, *fields)
        chunks.append(b"".join((header, xxhash.xxh3_64_digest(header), *payload)))
    return chunks


def check_sizes(chunks: Sequence[Chunk]) -> None:
    """Raise CodecError unless the chunks, as their headers have it, make a body of the size that the first one says.

    So that nobody has to take the word of the first one.
    """
    headers = [_header(chunk, index) for index, chunk in enumerate(chunks)]
    if not headers or headers[0].total != sum(header.size for header in headers):
        raise CodecError("chunks are missing or cut short")


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

    def read(self, size: int) -> bytearray:
        """The next bytes."""
        target = bytearray(size)
        self.read_into(memoryview(target))
        return target

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
        expected: tuple[int, int] | None = None
        size = 0
        for index, chunk in enumerate(chunks):
            header = _header(chunk, index)
            expected = expected or (header.chunks, header.total)
            if (header.place, header.chunks, header.total) != (index, *expected):
                raise CodecError(f"chunk {index} of {expected[0]} is out of place, or one is missing")
            if header.mark != mark:
                raise CodecError(f"chunk {index} was written for another model or configuration")
            self.total = header.total
            size += header.size
            digests.append(header.digest)
            bodies.add(header.body)
            yield _payload(chunk, header)
        if (len(digests), size) != expected:
            raise CodecError("chunks are missing or cut short")
        if bodies != {_digest(digests)}:
            raise CodecError("the chunks belong to different segments")


def _header(chunk: Chunk, index: int) -> _Header:
    """What a chunk says about itself, once it is sure that nothing in it changed."""
    if len(chunk) <= _OVERHEAD:
        raise CodecError(f"chunk {index} is cut short")
    view = memoryview(chunk)[:_OVERHEAD]
    magic, version, *fields = _HEADER.unpack(view[: _HEADER.size])
    if (magic, version) != (_MAGIC, FORMAT_VERSION):
        raise CodecError(f"chunk {index} has another format")
    if view[_HEADER.size :] != xxhash.xxh3_64_digest(view[: _HEADER.size]):
        raise CodecError(f"chunk {index} has a damaged header")
    header = _Header(*fields)
    sensible = 0 < header.size <= CHUNK_BYTES if header.planes else header.size == len(chunk) - _OVERHEAD
    if not sensible:
        raise CodecError(f"chunk {index} has another size than it says")
    return header


def _payload(chunk: Chunk, header: _Header) -> memoryview:
    payload = memoryview(chunk)[_OVERHEAD:]
    if header.digest != _digest([payload]):
        raise CodecError(f"chunk {header.place} is damaged")
    return expand(payload, header.size, header.planes) if header.planes else payload


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


def _packed(payload: list[memoryview], planes: int) -> tuple[list[memoryview], int]:
    """The payload as it is stored, and what the header says of that."""
    if not planes:
        return payload, 0
    shorter = memoryview(compress(payload, planes))
    return ([shorter], planes) if len(shorter) < sum(map(len, payload)) else (payload, 0)


def _digest(pieces: Iterable[bytes | memoryview]) -> bytes:
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
