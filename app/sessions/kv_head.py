"""The head of a session's stored cache: its generation, what it covers, and the chunks it consists of."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_128_hexdigest

from app.sessions.kv_cipher import Cipher
from app.sessions.kv_frame import VALUE_BYTES, FrameError, framed_size
from app.sessions.model import pack_tokens

FIELDS = ("generation", "fingerprint", "bytes", "manifest", "digest")

HEAD_BYTES = 2**20
"""Largest head that is read: room for some 100,000 chunks."""


@dataclass(frozen=True)
class StoredSegment:
    """A segment's name within the session, and the sizes of its chunks as stored, in order."""

    name: str
    sizes: tuple[int, ...]

    def keys(self, prefix: str) -> list[str]:
        """The names of its chunks."""
        return [f"{prefix}:seg:{self.name}:{index}" for index in range(len(self.sizes))]


@dataclass(frozen=True)
class StoredHead:
    """What is stored for a session.

    `tokens` is the true number of tokens covered, from the sequence's first; `token_digest` is the digest of exactly
    these token ids, by which a turn sees that the cache is a prefix of its own sequence.
    """

    generation: int
    fingerprint: str
    tokens: int
    token_digest: str
    segments: tuple[StoredSegment, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks as stored."""
        return sum(sum(segment.sizes) for segment in self.segments)

    def keys(self, prefix: str) -> list[str]:
        """The names of all chunks, in order."""
        return [key for segment in self.segments for key in segment.keys(prefix)]


@dataclass(frozen=True)
class StoredCache:
    """A whole stored cache in memory: the chunks of every segment, byte for byte as they were given to `stage`."""

    head: StoredHead
    segments: list[list[bytes]]

    @classmethod
    def collect(cls, head: StoredHead, segments: Iterator[Iterator[memoryview]]) -> "StoredCache":
        """To be given to `KVStore.load` by whoever wants the chunks themselves."""
        return cls(head, [[bytes(chunk) for chunk in chunks] for chunks in segments])


def token_digest(token_ids: Sequence[int]) -> str:
    """Digest of a token sequence, the same on every machine."""
    return hashlib.blake2b(pack_tokens(token_ids), digest_size=16).hexdigest()


def head_fields(prefix: str, head: StoredHead, cipher: Cipher | None = None) -> dict[str, str]:
    """The head as the fields of a hash, FIELDS in this order. With a cipher, the digest is one that needs its key."""
    manifest = {
        "tokens": head.tokens,
        "token_digest": head.token_digest,
        "segments": [[segment.name, list(segment.sizes)] for segment in head.segments],
    }
    values = [str(head.generation), head.fingerprint, str(head.nbytes), json.dumps(manifest, separators=(",", ":"))]
    text = _text(prefix, values)
    digest = cipher.seal(text, b"").hex() if cipher else xxh3_128_hexdigest(text.encode())
    return dict(zip(FIELDS, [*values, digest], strict=True))


def parse_head(prefix: str, stored: Sequence[bytes | None], cipher: Cipher | None = None) -> StoredHead:
    """The inverse of `head_fields`, from the values of FIELDS. Raises FrameError for anything else than it wrote."""
    try:
        *values, digest = [value.decode() for value in stored if value is not None]
        if cipher:
            cipher.open(_text(prefix, values), bytes.fromhex(digest))
        elif digest != xxh3_128_hexdigest(_text(prefix, values).encode()):
            raise FrameError("the head is damaged")
        generation, fingerprint, nbytes, manifest = values
        head = _parse(int(generation), fingerprint, json.loads(manifest))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"the head cannot be read: {error}") from error
    if head.generation < 1 or head.tokens < 1 or not head.segments or str(head.nbytes) != nbytes:
        raise FrameError("the head contradicts itself")
    return head


def _parse(generation: int, fingerprint: str, manifest: dict[str, Any]) -> StoredHead:
    segments = tuple(_segment(name, sizes) for name, sizes in manifest["segments"])
    tokens, digest = manifest["tokens"], manifest["token_digest"]
    if not isinstance(tokens, int) or not isinstance(digest, str):
        raise FrameError("the head has values of wrong types")
    return StoredHead(generation, fingerprint, tokens, digest, segments)


def _segment(name: Any, sizes: Any) -> StoredSegment:
    if not isinstance(name, str) or not sizes:
        raise FrameError("a segment without name or chunks")
    if not all(isinstance(size, int) and framed_size(0) < size <= VALUE_BYTES for size in sizes):
        raise FrameError("a chunk of impossible size")
    return StoredSegment(name, tuple(sizes))


def _text(prefix: str, values: Sequence[str]) -> str:
    return "\0".join((prefix, *values))
