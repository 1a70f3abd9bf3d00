"""How long an operation on the Redis-protocol server may take: a fixed time, and more for every byte that it moves."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

BYTES_PER_S = 4 * 2**20
"""A server that moves fewer is as good as none: most models compute as fast."""


class DeadlineError(Exception):
    """An operation took longer than it may."""


class Deadline:
    """The end of one operation. Its time runs from `start`, not while it is `paused`. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._since: float | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Its time runs from here on."""
        with self._lock:
            self._since = time.monotonic()

    def left(self) -> float:
        """Seconds left; not positive when it is over."""
        with self._lock:
            return self._left if self._since is None else self._left - (time.monotonic() - self._since)

    def check(self, nbytes: int = 0) -> None:
        """Before a round trip that moves `nbytes`, which takes time of its own. Raises DeadlineError at the end."""
        if self.left() <= 0:
            raise DeadlineError("the operation took too long")
        with self._lock:
            self._left += nbytes / BYTES_PER_S

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs in here is not the server's time."""
        left = self.left()
        with self._lock:
            self._left, self._since = left, None
        try:
            yield
        finally:
            self.start()
