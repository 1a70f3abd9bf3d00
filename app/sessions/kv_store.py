"""The KV of sessions on a Redis-protocol server.

Chunks are written first, under names that are used once, and nobody sees them; then one script makes the new head
visible if the generation is still the expected one. A cache is an accelerator: whatever the server does, `load` and
`stage` return None, `publish` and `drop` return False, in bounded time, and the turn goes on without it.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import redis
import structlog

from app.sessions.kv_frame import FrameError, framed_size, session_prefix
from app.sessions.kv_head import StoredCache, StoredHead, StoredSegment, head_fields
from app.sessions.kv_health import CoolDown, Counters, Deadline, DeadlineError
from app.sessions.kv_scripts import DROP, PUBLISH
from app.sessions.kv_transfer import read_chunks, read_head, write_chunks

log = structlog.get_logger()

T = TypeVar("T")

DEADLINE_S = 10.0
WORKERS = 8
COOL_DOWN_S = 5.0


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
    """Thread-safe and synchronous: to be called from worker threads, never from an event loop."""

    def __init__(
        self, client: redis.Redis, ttl_s: int, *, deadline_s: float = DEADLINE_S, cool_down_s: float = COOL_DOWN_S
    ) -> None:
        self._client = client
        self._ttl_s = ttl_s
        self._deadline_s = deadline_s
        self._cool_down = CoolDown(cool_down_s)
        self._counters = Counters()
        self._publish = client.register_script(PUBLISH)
        self._drop = client.register_script(DROP)
        self._undropped: set[str] = set()
        self._cuts = 0
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="snaprag-kv")

    def counts(self, operation: str = "load") -> dict[str, int]:
        """Calls of `load`, `stage`, `publish` or `drop` by outcome; a load that returned something is a `hit`."""
        return self._counters.of(operation)

    def load(self, tenant: str, session_id: str, fingerprint: str) -> StoredCache | None:
        """The session's cache, every chunk verified before any is returned, and its TTLs renewed.

        None when there is none, when it was made under another fingerprint or is damaged (it is then dropped), and
        when the server does not answer.
        """
        prefix = session_prefix(tenant, session_id)
        return self._attempt("load", prefix, lambda deadline: self._load(prefix, fingerprint, deadline))

    def stage(self, tenant: str, session_id: str, new: NewCache) -> Staged | None:
        """Write the new chunks; nobody sees them before `publish`, and they expire if that never comes.

        Raises ValueError for chunks that are too large or none at all, which is the caller's mistake.
        """
        if not new.chunks:
            raise ValueError("A segment has at least one chunk.")
        prefix = session_prefix(tenant, session_id)
        sizes = tuple(framed_size(len(chunk)) for chunk in new.chunks)
        # the random part makes every name new: chunks of a failed or competing save are never mistaken for these
        segment = StoredSegment(f"{new.generation}.{secrets.token_hex(4)}", sizes)
        head = StoredHead(new.generation, new.fingerprint, new.tokens, new.token_digest, (*new.kept, segment))

        def write(deadline: Deadline) -> tuple[str, Staged]:
            write_chunks(self._client, prefix, segment, new.chunks, self._ttl_s, deadline)
            return "stored", Staged(prefix, new.expected_generation, head)

        return self._attempt("stage", prefix, write)

    def publish(self, staged: Staged) -> bool:
        """Make staged chunks the session's cache and remove all others, in one step.

        False when another generation is stored than was expected, or a chunk is gone.
        """
        return bool(self._attempt("publish", staged.prefix, lambda deadline: self._flip(staged)))

    def drop(self, tenant: str, session_id: str) -> bool:
        """Remove all that is stored for the session. A drop that fails is made up for when the server is back."""
        prefix = session_prefix(tenant, session_id)
        dropped = bool(self._attempt("drop", prefix, lambda deadline: self._remove(prefix)))
        if not dropped:
            with self._lock:
                self._undropped.add(prefix)
        return dropped

    def _attempt(self, operation: str, prefix: str, work: Callable[[Deadline], tuple[str, T]]) -> T | None:
        """Run `work`, which returns its outcome and its result. None for whatever the server does wrong."""
        if self._cool_down.active:
            self._counters.add(operation, "cooling_down")
            return None
        problem: Exception | None = None
        result: T | None = None
        try:
            outcome, result = self._in_time(work)
        except (redis.TimeoutError, TimeoutError, DeadlineError) as error:
            outcome, problem = "timeout", error
        except (redis.ConnectionError, OSError) as error:
            outcome, problem = "unreachable", error
        except redis.RedisError as error:
            outcome, problem = "refused", error
        if outcome in ("timeout", "unreachable"):
            self._cool_down.start()
        if problem is not None:
            # the client puts the command in front of the server's words: values have no place in a log
            said = str(problem).rpartition("caused error: ")[2][:200]
            kind = type(problem).__name__
            log.warning("kv_store_failed", operation=operation, session=prefix, outcome=outcome, error=kind, said=said)
        self._counters.add(operation, outcome)
        return result

    def _in_time(self, work: Callable[[Deadline], tuple[str, T]]) -> tuple[str, T]:
        """Run `work` in a worker and leave it when its time is over.

        A socket's timeout bounds one read: a server that sends a byte now and then would hold the caller for ever.
        Raises TimeoutError, and whatever `work` raises.
        """

        def run() -> tuple[str, T]:
            cuts = self._cuts
            try:
                self._make_up_drops()
                return work(deadline)
            except (AttributeError, ValueError) as error:
                # how the client fails in the middle of a read when another caller, whose time was over, closed it
                if self._cuts == cuts:
                    raise
                raise redis.ConnectionError("closed by a call that was too late") from error

        deadline = Deadline(self._deadline_s)
        future = self._workers.submit(run)
        try:
            return future.result(self._deadline_s)
        except TimeoutError:
            self._abandon(future)
            raise

    def _abandon(self, future: "Future[tuple[str, T]]") -> None:
        """Close all connections, and again until the worker has ended: the client may have opened one anew."""
        if future.cancel() or future.done():
            return
        self._cuts += 1
        self._client.connection_pool.disconnect(inuse_connections=True)
        again = threading.Timer(0.2, self._abandon, [future])
        again.daemon = True
        again.start()

    def _load(self, prefix: str, fingerprint: str, deadline: Deadline) -> tuple[str, StoredCache | None]:
        generation = ""
        try:
            head = read_head(self._client, prefix)
            if head is None:
                return "missing", None
            generation = str(head.generation)
            if head.fingerprint != fingerprint:
                outcome = "fingerprint"
            else:
                segments = read_chunks(self._client, prefix, head, self._ttl_s, deadline)
                return "hit", StoredCache(head, segments)
        except FrameError as error:
            outcome = "corrupt"
            log.warning("kv_store_corrupt", session=prefix, error=str(error))
        # only the generation that was read: a turn on another replica may have published a sound one meanwhile
        self._drop(keys=_head_and_index(prefix), args=[generation])
        return outcome, None

    def _flip(self, staged: Staged) -> tuple[str, bool]:
        fields = head_fields(staged.prefix, staged.head)
        keys = [*_head_and_index(staged.prefix), *staged.head.keys(staged.prefix)]
        pairs = [part for field in fields.items() for part in field]
        answer = int(self._publish(keys=keys, args=[staged.expected_generation, self._ttl_s, *pairs]))
        return {1: "published", 0: "conflict", -1: "incomplete"}[answer], answer == 1

    def _remove(self, prefix: str) -> tuple[str, bool]:
        self._drop(keys=_head_and_index(prefix), args=[""])
        return "dropped", True

    def _make_up_drops(self) -> None:
        with self._lock:
            waiting, self._undropped = self._undropped, set()
        try:
            while waiting:
                self._remove(next(iter(waiting)))
                waiting.pop()
        finally:
            with self._lock:
                self._undropped |= waiting


def _head_and_index(prefix: str) -> list[str]:
    return [f"{prefix}:head", f"{prefix}:chunks"]
