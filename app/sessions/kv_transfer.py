"""Moving a head and its chunks between this process and the server, a bounded window of chunks at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import redis

from app.sessions.kv_cipher import Cipher
from app.sessions.kv_deadline import Deadline
from app.sessions.kv_frame import FrameError, pack_chunk, unpack_chunk
from app.sessions.kv_head import FIELDS, HEAD_BYTES, StoredHead, StoredSegment, parse_head

WINDOW = 4
"""Chunks written in one round trip: at most 16 MiB."""

READ_WINDOW = 2
"""Chunks read in one round trip: few, so that their memory is used again. New memory costs more than reading."""


def read_head(client: redis.Redis, prefix: str, cipher: Cipher | None) -> StoredHead | None:
    """The head, None when there is none. Raises FrameError for one that is damaged, and redis.RedisError."""
    key = f"{prefix}:head"
    with _wrong_type_is_damage("the head"):
        lengths = client.pipeline(transaction=False)
        for name in FIELDS:
            lengths.hstrlen(key, name)
        sizes = lengths.execute()
        if not any(sizes):
            return None
        if sum(sizes) > HEAD_BYTES:
            raise FrameError("the head is too long")
        return parse_head(prefix, _bytes(client.hmget(key, FIELDS)), cipher)


def write_chunks(
    client: redis.Redis,
    prefix: str,
    segment: StoredSegment,
    chunks: Sequence[bytes],
    ttl_s: int,
    cipher: Cipher | None,
    deadline: Deadline,
) -> None:
    """Write the chunks of a segment, each named in the session's index before it exists. Raises redis.RedisError,
    DeadlineError, and ValueError for a chunk that is too large."""
    keys = segment.keys(prefix)
    for start in range(0, len(keys), WINDOW):
        deadline.check(sum(segment.sizes[start : start + WINDOW]))
        window = client.pipeline(transaction=False)
        window.sadd(f"{prefix}:chunks", *keys[start : start + WINDOW])
        window.expire(f"{prefix}:chunks", ttl_s)
        for index in range(start, min(start + WINDOW, len(keys))):
            window.set(keys[index], pack_chunk(keys[index], index, chunks[index], cipher), ex=ttl_s)
        window.execute()


def read_chunks(
    client: redis.Redis, prefix: str, head: StoredHead, ttl_s: int, cipher: Cipher | None, deadline: Deadline
) -> Iterator[Iterator[memoryview]]:
    """The chunks of every segment, each verified as it comes, with every TTL of the session renewed.

    A chunk is to be used before the next one is taken: then the memory of all is that of a window. The iterators raise
    FrameError when one is missing or wrong, redis.RedisError and DeadlineError.
    """
    renewal = client.pipeline(transaction=False)
    renewal.expire(f"{prefix}:head", ttl_s)
    renewal.expire(f"{prefix}:chunks", ttl_s)
    renewal.execute()
    for segment in head.segments:
        yield _read_segment(client, prefix, segment, ttl_s, cipher, deadline)


def _read_segment(
    client: redis.Redis, prefix: str, segment: StoredSegment, ttl_s: int, cipher: Cipher | None, deadline: Deadline
) -> Iterator[memoryview]:
    keys = segment.keys(prefix)
    for start in range(0, len(keys), READ_WINDOW):
        deadline.check(sum(segment.sizes[start : start + READ_WINDOW]))
        window = client.pipeline(transaction=False)
        for index in range(start, min(start + READ_WINDOW, len(keys))):
            # one byte more than expected, so that a longer value is seen but never transferred whole
            window.getrange(keys[index], 0, segment.sizes[index])
            window.expire(keys[index], ttl_s)
        with _wrong_type_is_damage("a chunk"):
            values = window.execute()[::2]
        for index, value in enumerate(values, start):
            if len(value) != segment.sizes[index]:
                raise FrameError("a chunk is missing" if not value else "a chunk has another size")
            chunk = unpack_chunk(keys[index], index, value, cipher)
            with deadline.paused():
                yield chunk


def _bytes(values: Sequence[bytes | str | None]) -> list[bytes | None]:
    # the client of this service never decodes replies; the library's types allow for one that does
    return [value for value in values if not isinstance(value, str)]


@contextmanager
def _wrong_type_is_damage(what: str) -> Iterator[None]:
    try:
        yield
    except redis.ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise FrameError(f"{what} has another type") from error
        raise
