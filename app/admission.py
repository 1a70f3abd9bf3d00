"""How many turns may wait or run: for one tenant, and for the whole service."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import ServerBusyError, TenantLimitError

RETRY_AFTER_S = 10


class Admission:
    """Counts turns from their first step to their last. Thread-safe."""

    def __init__(self, total: int, per_tenant: int) -> None:
        self._total = total
        self._per_tenant = per_tenant
        self._turns: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def turns(self) -> int:
        """Turns in progress."""
        with self._lock:
            return self._turns.total()

    @contextmanager
    def turn(self, tenant: str) -> Iterator[None]:
        """Hold a place for one turn. TenantLimitError or ServerBusyError when there is none."""
        with self._lock:
            if self._turns[tenant] >= self._per_tenant:
                raise TenantLimitError(self._per_tenant, RETRY_AFTER_S)
            if self._turns.total() >= self._total:
                raise ServerBusyError("too many turns are waiting", RETRY_AFTER_S)
            self._turns[tenant] += 1
        try:
            yield
        finally:
            with self._lock:
                self._turns[tenant] -= 1
                self._turns += Counter()  # drops tenants that have no turn
