"""The circuit breaker before the Redis-protocol server: nobody waits for a server that is known to be away."""

import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger()


class Breaker:
    """Closed while the server answers. `trip` opens it; then one probe after another runs in a thread of its own, until
    one succeeds and closes it. So a server that is away costs the calls that found it out, and no later one.

    `probe` says whether the server is back, and raises nothing. `close` ends the thread for good.
    """

    def __init__(self, probe: Callable[[], bool], pause_s: float) -> None:
        self._probe = probe
        self._pause_s = pause_s
        self._open = False
        self._prober: threading.Thread | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether nothing is to be asked of the server now."""
        return self._open

    def trip(self) -> None:
        """The server did not answer."""
        with self._lock:
            if self._open or self._ending.is_set():
                return
            self._open = True
            self._prober = threading.Thread(target=self._watch, name="kv-breaker", daemon=True)
            self._prober.start()
        log.warning("kv_circuit_open")

    def close(self) -> None:
        """Stop probing, and wait for a probe that runs."""
        with self._lock:
            self._ending.set()
        if self._prober is not None:
            self._prober.join()

    def _watch(self) -> None:
        while not self._ending.wait(self._pause_s):
            if self._probe():
                with self._lock:
                    self._open = False
                log.info("kv_circuit_closed")
                return
