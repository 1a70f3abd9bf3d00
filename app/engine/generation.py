"""One turn as the engine sees it: what is asked of the model, and the stream of what comes back."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from app.engine.sampling import Sampling
from app.errors import TurnCancelledError
from kv_compression import KVCache, Segment


def _nothing() -> KVCache | None:
    return None


@dataclass(frozen=True)
class GenerationRequest:
    """`tenant` is who asks. `token_ids` is the session's whole sequence, this turn's prompt last. `restore` runs when
    the turn begins, beside the model; the cache that it returns covers the sequence's first tokens, not all."""

    tenant: str
    token_ids: Sequence[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    restore: Callable[[], KVCache | None] = _nothing
    keep_archive: bool = False


@dataclass(frozen=True)
class Finished:
    """The end of a generation. `tail` is the end of the answer's text, which no token stands for: what a stop string
    left of the token that it cut through. `segment` is what later turns need, on the CPU, None when nobody asked for it
    or it cannot be had; `replaces` says that it stands for the whole sequence and not only for what this turn added.
    Times in milliseconds."""

    reason: str
    tail: str
    cached_tokens: int
    kept_tokens: int
    segment: Segment | None
    replaces: bool
    queue_ms: float
    restore_ms: float
    prefill_ms: float
    decode_ms: float


@dataclass(eq=False)
class Generation:
    """A request in the engine's queue. The engine puts events in; one reader takes them out with `tokens()`."""

    request: GenerationRequest
    cancelled: threading.Event
    submitted_at: float
    finished: Finished | None = None
    _events: "queue.SimpleQueue[int | Finished | Exception]" = field(default_factory=queue.SimpleQueue)

    def emit(self, event: "int | Finished | Exception") -> None:
        """Called by the engine: a token id, the end, or the error that ended it."""
        self._events.put(event)

    def check_cancelled(self) -> None:
        """Raise TurnCancelledError once the client has gone away."""
        if self.cancelled.is_set():
            raise TurnCancelledError

    def tokens(self, on_wait: Callable[[], None], wait_s: float = 0.5) -> Iterator[int]:
        """Token ids as they come; `on_wait` is called at least every `wait_s` seconds. Afterwards `finished` is set.

        Raises TurnCancelledError, or the error that ended the generation.
        """
        while True:
            try:
                event = self._events.get(timeout=wait_s)
            except queue.Empty:
                self.check_cancelled()
                on_wait()
                continue
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Finished):
                self.finished = event
                return
            on_wait()
            yield event
