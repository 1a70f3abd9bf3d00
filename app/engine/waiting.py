"""Turns that wait for the engine: bounded, and taken in turn from the tenants that have some."""

import threading
import time
from collections import OrderedDict, deque

from app.engine.generation import Generation
from app.errors import ServerBusyError

RETRY_AFTER_S = 10


class WaitingTurns:
    """First come, first served within a tenant; tenants take turns. Thread-safe.

    turns, tokens: how many turns, and how many tokens of their sequences, may wait in all. A turn alone may have any
    number. patience_s: a turn that has waited longer is refused.
    """

    def __init__(self, turns: int, tokens: int, patience_s: float) -> None:
        self._limits = turns, tokens
        self._patience_s = patience_s
        self._by_tenant: OrderedDict[str, deque[Generation]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Turns that wait."""
        with self._lock:
            return len(self._all())

    def put(self, generation: Generation) -> None:
        """Raises ServerBusyError when too much waits."""
        with self._lock:
            waiting = self._all()
            tokens = sum(len(other.request.token_ids) for other in [*waiting, generation])
            if waiting and (len(waiting) >= self._limits[0] or tokens > self._limits[1]):
                raise ServerBusyError("too many turns are waiting", RETRY_AFTER_S)
            self._by_tenant.setdefault(generation.request.tenant, deque()).append(generation)

    def next(self) -> Generation | None:
        """The turn that `take` would take."""
        with self._lock:
            return next((queue[0] for queue in self._by_tenant.values()), None)

    def take(self) -> Generation:
        """The first turn of the tenant that was not served for longest."""
        with self._lock:
            tenant, queue = next(iter(self._by_tenant.items()))
            generation = queue.popleft()
            self._by_tenant.move_to_end(tenant)
            self._drop_empty()
            return generation

    def leave(self) -> list[Generation]:
        """Take out those whose clients went away or that waited too long."""
        limit = time.perf_counter() - self._patience_s
        with self._lock:
            leaving = [one for one in self._all() if one.cancelled.is_set() or one.submitted_at < limit]
            for generation in leaving:
                self._by_tenant[generation.request.tenant].remove(generation)
            self._drop_empty()
        return leaving

    def _all(self) -> list[Generation]:
        return [generation for queue in self._by_tenant.values() for generation in queue]

    def _drop_empty(self) -> None:
        for tenant in [tenant for tenant, queue in self._by_tenant.items() if not queue]:
            del self._by_tenant[tenant]
