"""The KV of sessions on a Redis-protocol server.

Chunks are written first, under names that are used once, and nobody sees them; then one script makes the new head
visible if the generation is still the expected one. A cache is an accelerator: whatever the server does, `load` and
`stage` return None, `publish`, `discard` and `drop` return False, in bounded time, and the turn goes on without it.
"""

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import redis
import structlog

from app.sessions.kv_attempts import Attempts
from app.sessions.kv_cipher import Cipher
from app.sessions.kv_deadline import Deadline
from app.sessions.kv_frame import FrameError, framed_size, session_prefix
from app.sessions.kv_head import StoredHead, StoredSegment, head_fields
from app.sessions.kv_scripts import DROP, PUBLISH
from app.sessions.kv_transfer import read_chunks, read_head, write_chunks
from app.sessions.kv_usage import Quotas, Usage

log = structlog.get_logger()

T = TypeVar("T")
Use = Callable[[StoredHead, Iterator[Iterator[memoryview]]], T]

TIMEOUT_S = 2.0
"""For tools that can wait; the service passes SNAPRAG_KV_TIMEOUT_MS."""

PROBE_S = 0.5
REPAIR_S = 10.0
"""Longest walk over all keys of the server; a server that answers nothing for the timeout ends it at once."""

NO_QUOTAS = Quotas()


@dataclass(frozen=True)
class NewCache:
    """What a turn wants to store: one new segment, after the segments that are kept.

    `generation` is the turn's number; `expected_generation` that of the head the turn loaded, 0 when it loaded none.
    `tokens` and `token_digest` cover the kept segments and the new one. A chunk has at most CHUNK_BYTES.
    """

    generation: int
    expected_generation: int
    fingerprint: str
    tokens: int
    token_digest: str
    chunks: Sequence[bytes]
    kept: tuple[StoredSegment, ...] = ()


@dataclass(frozen=True)
class Staged:
    """Chunks that are written and not yet visible, with the head that makes them so."""

    prefix: str
    expected_generation: int
    head: StoredHead


class KVStore:
    """Thread-safe and synchronous: to be called from worker threads, never from an event loop.

    `timeout_s` is what an operation may take beside the moving of its bytes; a server that takes longer, or is away, is
    left alone until a probe, tried every `probe_s`, finds it well. `close` ends the probes.
    """

    def __init__(
        self,
        client: redis.Redis,
        ttl_s: int,
        quotas: Quotas = NO_QUOTAS,
        *,
        cipher: Cipher | None = None,
        timeout_s: float = TIMEOUT_S,
        probe_s: float = PROBE_S,
    ) -> None:
        self._client = client
        self._ttl_s = ttl_s
        self._quotas = quotas
        self._cipher = cipher
        self._usage = Usage(client, ttl_s, quotas)
        self._attempts = Attempts(client, timeout_s, probe_s)
        self._publish = client.register_script(PUBLISH)
        self._drop = client.register_script(DROP)
        self._undropped: set[str] = set()
        self._lock = threading.Lock()

    def counts(self, operation: str = "load") -> dict[str, int]:
        """Calls of an operation (`load`, `publish`, …) by outcome; a `hit` returned something."""
        return self._attempts.counts(operation)

    @property
    def is_away(self) -> bool:
        """Whether the server did not answer, and no probe has found it back yet."""
        return self._attempts.is_open

    def close(self) -> None:
        """Stop looking for a server that is away."""
        self._attempts.close()

    def held_bytes(self) -> int | None:
        """Bytes of all chunks on the server; None when it does not answer."""
        self._repair()
        return self._attempts.run("held", "", lambda deadline: ("read", self._usage.held()))

    def load(self, tenant: str, session_id: str, fingerprint: str, use: Use[T]) -> T | None:
        """What `use` makes of the session's cache, of which it is given the head and the chunks of every segment.

        Every chunk is verified before `use` sees it, but only when `use` has taken the last one is the cache known to
        be whole; what it makes is worth nothing before. It raises FrameError for a cache that it cannot accept. TTLs
        are renewed. None when there is no cache, when it was made under another fingerprint or is damaged (it is then
        dropped), and when the server does not answer.
        """
        prefix = session_prefix(tenant, session_id)
        return self._attempts.run("load", prefix, lambda deadline: self._load(prefix, fingerprint, use, deadline))

    def stage(self, tenant: str, session_id: str, new: NewCache) -> Staged | None:
        """Write the new chunks; nobody sees them before `publish`, and they expire if that never comes.

        None also for a cache that alone exceeds a quota: what is stored already stays, which is a prefix of it.
        Raises ValueError for chunks that are too large or none at all, which is the caller's mistake.
        """
        if not new.chunks:
            raise ValueError("A segment has at least one chunk.")
        prefix = session_prefix(tenant, session_id)
        sizes = tuple(framed_size(len(chunk), self._cipher) for chunk in new.chunks)
        # the random part makes every name new: chunks of a failed or competing save are never mistaken for these
        segment = StoredSegment(f"{new.generation}.{secrets.token_hex(4)}", sizes)
        head = StoredHead(new.generation, new.fingerprint, new.tokens, new.token_digest, (*new.kept, segment))

        def write(deadline: Deadline) -> tuple[str, Staged | None]:
            if not self._quotas.allow(head.nbytes):
                return "too_large", None
            self._make_up_drops()
            write_chunks(self._client, prefix, segment, new.chunks, self._ttl_s, self._cipher, deadline)
            return "stored", Staged(prefix, new.expected_generation, head)

        return self._attempts.run("stage", prefix, write)

    def publish(self, staged: Staged) -> bool:
        """Make staged chunks the session's cache and remove all others, in one step.

        Then the sessions that were not used for longest are dropped until the quotas hold again. False when another
        generation is stored than was expected, or a chunk is gone.
        """
        published = bool(self._attempts.run("publish", staged.prefix, lambda deadline: self._flip(staged)))
        if published:
            self._repair()
            self._attempts.run("account", staged.prefix, lambda deadline: self._account(staged, deadline))
        return published

    def discard(self, staged: Staged) -> bool:
        """Remove staged chunks whose turn was not kept; what is published stays. If this fails, they expire."""
        return bool(self._attempts.run("discard", staged.prefix, lambda deadline: self._unstage(staged)))

    def drop(self, tenant: str, session_id: str) -> bool:
        """Remove all that is stored for the session. A drop that fails is made up for when the server is back."""
        prefix = session_prefix(tenant, session_id)
        dropped = bool(self._attempts.run("drop", prefix, lambda deadline: self._remove(prefix)))
        if not dropped:
            with self._lock:
                self._undropped.add(prefix)
        return dropped

    def _load(self, prefix: str, fingerprint: str, use: Use[T], deadline: Deadline) -> tuple[str, T | None]:
        self._make_up_drops()
        generation = ""
        try:
            head = read_head(self._client, prefix, self._cipher)
            if head is None:
                return "missing", None
            generation = str(head.generation)
            if head.fingerprint != fingerprint:
                outcome = "fingerprint"
            else:
                self._usage.touch(prefix)
                chunks = read_chunks(self._client, prefix, head, self._ttl_s, self._cipher, deadline)
                return "hit", use(head, chunks)
        except FrameError as error:
            outcome = "corrupt"
            log.warning("kv_store_corrupt", session=prefix, error=str(error))
        # only the generation that was read: a turn on another replica may have published a sound one meanwhile
        if self._drop(keys=_head_and_index(prefix), args=[generation]):
            self._usage.forget(prefix)
        return outcome, None

    def _flip(self, staged: Staged) -> tuple[str, bool]:
        fields = head_fields(staged.prefix, staged.head, self._cipher)
        keys = [*_head_and_index(staged.prefix), *staged.head.keys(staged.prefix)]
        pairs = [part for field in fields.items() for part in field]
        answer = int(self._publish(keys=keys, args=[staged.expected_generation, self._ttl_s, *pairs]))
        return {1: "published", 0: "conflict", -1: "incomplete"}[answer], answer == 1

    def _unstage(self, staged: Staged) -> tuple[str, bool]:
        keys = staged.head.segments[-1].keys(staged.prefix)
        removal = self._client.pipeline(transaction=False)
        removal.unlink(*keys)
        removal.srem(f"{staged.prefix}:chunks", *keys)
        removal.execute()
        return "discarded", True

    def _remove(self, prefix: str) -> tuple[str, bool]:
        self._drop(keys=_head_and_index(prefix), args=[""])
        self._usage.forget(prefix)
        return "dropped", True

    def _account(self, staged: Staged, deadline: Deadline) -> tuple[str, None]:
        excess = self._usage.record(staged.prefix, staged.head.nbytes)
        for session in excess:
            deadline.check()
            self._drop(keys=_head_and_index(session.prefix), args=[""])
            # counted until it is gone: a stop in between leaves it to the next publication
            self._usage.forget(session.prefix, session.last_use)
        if excess:
            log.info("kv_quota_exceeded", session=staged.prefix, dropped=len(excess))
        return ("made_room" if excess else "recorded"), None

    def _repair(self) -> None:
        """A walk that takes its time must not look like a server that is away."""
        if self._usage.repair_is_due():
            self._attempts.run("repair", "", self._usage.repair, REPAIR_S)

    def _make_up_drops(self) -> None:
        with self._lock:
            waiting, self._undropped = self._undropped, set()
        try:
            for prefix in sorted(waiting):
                self._remove(prefix)
                waiting.remove(prefix)
        finally:
            with self._lock:
                self._undropped |= waiting


def _head_and_index(prefix: str) -> list[str]:
    return [f"{prefix}:head", f"{prefix}:chunks"]
