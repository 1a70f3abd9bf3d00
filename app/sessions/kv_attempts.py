"""How the KV store talks to a server that may be slow, gone or wrong: in bounded time, without errors, and counted."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import redis
import structlog

from app.sessions.kv_cluster import disconnect

log = structlog.get_logger()

T = TypeVar("T")

WORKERS = 8


class DeadlineError(Exception):
    """An operation took longer than it may."""


class Deadline:
    """The end of one operation, checked between its round trips."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise DeadlineError when the time is over."""
        if time.monotonic() > self._end:
            raise DeadlineError("the operation took too long")


class Attempts:
    """Runs operations of `deadline_s` at most. After one that the server did not answer, `cool_down_s` pass in which
    nothing is tried, so that a dead server costs one delay and not one per turn. Thread-safe."""

    def __init__(self, client: redis.Redis, deadline_s: float, cool_down_s: float) -> None:
        self._client = client
        self._deadline_s = deadline_s
        self._cool_down_s = cool_down_s
        self._cooling_until = 0.0
        self._cuts = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="snaprag-kv")

    def counts(self, operation: str) -> dict[str, int]:
        """Outcome -> number of calls of one operation."""
        with self._lock:
            return {outcome: count for (name, outcome), count in self._counts.items() if name == operation}

    def run(self, operation: str, session: str, work: Callable[[Deadline], tuple[str, T]]) -> T | None:
        """The result of `work`, which returns its outcome and its result; None for whatever the server does wrong."""
        if time.monotonic() < self._cooling_until:
            self._count(operation, "cooling_down")
            return None
        try:
            outcome, result = self._in_time(work)
        except (redis.TimeoutError, TimeoutError, DeadlineError) as error:
            self._failed(operation, session, "timeout", error, pause=True)
        except (redis.ConnectionError, redis.exceptions.RedisClusterException, OSError) as error:
            self._failed(operation, session, "unreachable", error, pause=True)
        except redis.RedisError as error:
            self._failed(operation, session, "refused", error, pause=False)
        else:
            self._count(operation, outcome)
            return result
        return None

    def _failed(self, operation: str, session: str, outcome: str, error: Exception, pause: bool) -> None:
        if pause:
            self._cooling_until = time.monotonic() + self._cool_down_s
        self._count(operation, outcome)
        # the client puts the command in front of the server's words: values have no place in a log
        said = str(error).rpartition("caused error: ")[2][:200]
        kind = type(error).__name__
        log.warning("kv_store_failed", operation=operation, session=session, outcome=outcome, error=kind, said=said)

    def _count(self, operation: str, outcome: str) -> None:
        with self._lock:
            self._counts[operation, outcome] += 1

    def _in_time(self, work: Callable[[Deadline], tuple[str, T]]) -> tuple[str, T]:
        """Run `work` in a worker and leave it when its time is over.

        A socket's timeout bounds one read: a server that sends a byte now and then would hold the caller for ever.
        Raises TimeoutError, and whatever `work` raises.
        """
        future = self._workers.submit(self._work, work, Deadline(self._deadline_s), self._cuts)
        try:
            return future.result(self._deadline_s)
        except TimeoutError:
            self._abandon(future)
            raise

    def _work(self, work: Callable[[Deadline], tuple[str, T]], deadline: Deadline, cuts: int) -> tuple[str, T]:
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
