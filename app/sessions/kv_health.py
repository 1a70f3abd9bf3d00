"""What the KV store counts, and the pause it makes after a server that does not answer."""

import threading
import time
from collections import Counter


class Counters:
    """Calls by operation and outcome. Thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, operation: str, outcome: str) -> None:
        """Count one call."""
        with self._lock:
            self._counts[operation, outcome] += 1

    def of(self, operation: str) -> dict[str, int]:
        """Outcome -> number of calls of one operation."""
        with self._lock:
            return {outcome: count for (name, outcome), count in self._counts.items() if name == operation}


class CoolDown:
    """For `seconds` after a failure nothing is tried, so that a dead server costs one delay and not one per turn."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    @property
    def active(self) -> bool:
        """Calls are to return at once."""
        return time.monotonic() < self._until

    def start(self) -> None:
        """The server did not answer."""
        self._until = time.monotonic() + self._seconds


class DeadlineError(Exception):
    """An operation took longer than it may."""


class Deadline:
    """The end of one operation, checked between its round trips."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise DeadlineError when the time is over."""
        if time.monotonic() > self._end:
            raise DeadlineError
