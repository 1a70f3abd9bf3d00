"""From which length on a stored cache is worth reading: below it, computing the tokens anew is sooner.

Nothing is set or measured beforehand: the service learns from its own turns what a token costs to compute, and what a
cache costs to restore, of which a part is fixed and a part grows with its tokens.
"""

import math
import threading
from collections.abc import Sequence

KEEP = 0.7
"""What an older measurement counts beside the next one: the last few decide."""

LEAST_TOKENS = 64  # of a prompt whose time says something about longer ones
LEAST_SPREAD = 0.1  # of lengths, as a part of their mean, from which a fixed part can be told from a growing one
TRY_AGAIN = 8  # of so many turns that would compute, one restores: the server may have become faster


class BreakEven:
    """Thread-safe. As long as either side is unknown, restoring is worth it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._computed_tokens = self._computed_s = 0.0
        # sums over restored caches: weights, tokens, seconds, tokens squared, tokens times seconds
        self._sums: Sequence[float] = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._refused = 0

    def computed(self, tokens: int, seconds: float) -> None:
        """A prompt of so many new tokens was read."""
        if tokens < LEAST_TOKENS:
            return
        with self._lock:
            self._computed_tokens = KEEP * self._computed_tokens + tokens
            self._computed_s = KEEP * self._computed_s + seconds

    def restored(self, tokens: int, seconds: float) -> None:
        """A stored cache of so many tokens was restored."""
        with self._lock:
            new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
            self._sums = [KEEP * old + added for old, added in zip(self._sums, new, strict=True)]

    def worth_restoring(self, tokens: int) -> bool:
        """Whether a cache of so many tokens is sooner restored than computed."""
        with self._lock:
            if tokens >= self._length():
                return True
            self._refused += 1
            return self._refused % TRY_AGAIN == 0

    @property
    def length(self) -> float:
        """Caches of fewer tokens are computed; 0 as long as nothing is known, infinity when restoring never pays."""
        with self._lock:
            return self._length()

    def _length(self) -> float:
        if not self._computed_tokens or not self._sums[0]:
            return 0.0
        fixed, growing = self._restoring()
        gained = self._computed_s / self._computed_tokens - growing
        return fixed / gained if gained > 0 else math.inf

    def _restoring(self) -> tuple[float, float]:
        """Seconds per cache and per token: the line of least squares, or one through 0 where all are of one length."""
        weight, tokens, seconds, squared, mixed = self._sums
        spread = weight * squared - tokens * tokens
        mean = seconds / tokens
        if spread <= (LEAST_SPREAD * tokens) ** 2:
            return 0.0, mean
        slope = min(max((weight * mixed - tokens * seconds) / spread, 0.0), mean)
        return (seconds - slope * tokens) / weight, slope
