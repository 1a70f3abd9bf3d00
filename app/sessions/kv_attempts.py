"""How the KV store talks to a server that may be slow, gone or wrong: in bounded time, without errors, and counted."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import redis
import structlog

from app.sessions.kv_breaker import Breaker
from app.sessions.kv_cluster import disconnect, ping
from app.sessions.kv_deadline import Deadline, DeadlineError

log = structlog.get_logger()

T = TypeVar("T")
Work = Callable[[Deadline], tuple[str, T]]

WORKERS = 8

PROBE_BYTES = 2**18
"""Sent there and back in the time of a reply: a server that is too slow for caches must not look well."""

_AWAY = (redis.TimeoutError, TimeoutError, DeadlineError)
_UNREACHABLE = (redis.ConnectionError, redis.exceptions.RedisClusterException, OSError)


class _OpenError(Exception):
    """The breaker opened before the operation began."""


class Attempts:
    """Runs operations of `timeout_s`, and more for the bytes that they move (see `Deadline`). After one that the server
    did not answer nothing is tried, and nobody waits, until a probe finds it back; the first comes after `probe_s`.
    Thread-safe."""

    def __init__(self, client: redis.Redis, timeout_s: float, probe_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._cuts = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="snaprag-kv")
        self._breaker = Breaker(self._answers, probe_s)

    @property
    def is_open(self) -> bool:
        """Whether the server is known to be away."""
        return self._breaker.is_open

    def close(self) -> None:
        """Stop the probes."""
        self._breaker.close()

    def counts(self, operation: str) -> dict[str, int]:
        """Outcome -> number of calls of one operation."""
        with self._lock:
            return {outcome: count for (name, outcome), count in self._counts.items() if name == operation}

    def run(self, operation: str, session: str, work: Work[T], timeout_s: float | None = None) -> T | None:
        """The result of `work`, which returns its outcome and its result; None for whatever the server does wrong."""
        deadline = Deadline(self._timeout_s if timeout_s is None else timeout_s)
        try:
            outcome, result = self._in_time(self._unless_open(work), deadline)
        except _OpenError:
            self._count(operation, "circuit_open")
        except _AWAY as error:
            self._failed(operation, session, "timeout", error, away=True)
        except _UNREACHABLE as error:
            self._failed(operation, session, "unreachable", error, away=True)
        except redis.RedisError as error:
            self._failed(operation, session, "refused", error, away=False)
        else:
            self._count(operation, outcome)
            return result
        return None

    def _unless_open(self, work: Work[T]) -> Work[T]:
        """Checked here and again when a worker is free: others may have found out meanwhile."""

        def run(deadline: Deadline) -> tuple[str, T]:
            if self._breaker.is_open:
                raise _OpenError
            return work(deadline)

        if self._breaker.is_open:
            raise _OpenError
        return run

    def _answers(self) -> bool:
        """Whether the server is back, for the breaker."""

        def probe(_: Deadline) -> tuple[str, None]:
            ping(self._client, PROBE_BYTES)
            return "answered", None

        try:
            self._in_time(probe, Deadline(self._timeout_s))
        except (*_AWAY, *_UNREACHABLE):
            return False
        except redis.RedisError:  # it refuses, which is an answer
            return True
        except RuntimeError:  # the program ends: its workers take nothing more
            return False
        return True

    def _failed(self, operation: str, session: str, outcome: str, error: Exception, away: bool) -> None:
        if away:
            self._breaker.trip()
        self._count(operation, outcome)
        # the client puts the command in front of the server's words: values have no place in a log
        said = str(error).rpartition("caused error: ")[2][:200]
        kind = type(error).__name__
        log.warning("kv_store_failed", operation=operation, session=session, outcome=outcome, error=kind, said=said)

    def _count(self, operation: str, outcome: str) -> None:
        with self._lock:
            self._counts[operation, outcome] += 1

    def _in_time(self, work: Work[T], deadline: Deadline) -> tuple[str, T]:
        """Run `work` in a worker and leave it when its time is over.

        A socket's timeout bounds one read: a server that sends a byte now and then would hold the caller for ever.
        Raises TimeoutError, and whatever `work` raises.
        """
        future = self._workers.submit(self._work, work, deadline, self._cuts)
        while True:
            try:
                return future.result(max(deadline.left(), 0.005))
            except TimeoutError:
                if future.done() or deadline.left() <= 0:
                    self._abandon(future)
                    raise

    def _work(self, work: Work[T], deadline: Deadline, cuts: int) -> tuple[str, T]:
        deadline.start()
        try:
            return work(deadline)
        except (AttributeError, ValueError) as error:
            # how the client fails in the middle of a read when another caller, whose time was over, closed it
            if self._cuts == cuts:
                raise
            raise redis.ConnectionError("closed by a call that was too late") from error

    def _abandon(self, future: "Future[tuple[str, T]]") -> None:
        """Close all connections, and again until the worker has ended: the client may have opened one anew."""
        if future.cancel() or future.done():
            return
        self._cuts += 1
        disconnect(self._client)
        again = threading.Timer(0.2, self._abandon, [future])
        again.daemon = True
        again.start()
