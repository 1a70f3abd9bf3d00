"""A TCP proxy on loopback: it can be slow by the byte, cut connections, and act at a moment of the traffic."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

PIECE = 2**18


@dataclass
class Trigger:
    """Calls `action` once, before the `nth` piece of traffic that matches goes on.

    request: one that contains all `marks`. reply: one that contains them. answer: a reply that contains `then`, after a
    request that contains all `marks`. `fired` says that it came to that, `error` what `action` raised.
    """

    at: Literal["request", "reply", "answer"]
    marks: tuple[bytes, ...]
    action: Callable[[], None]
    nth: int = 1
    then: bytes = b""
    fired: bool = False
    error: Exception | None = None
    _done: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self) -> None:
        """One more match."""
        with self._lock:
            self.nth -= 1
            if self.nth:
                return
            self.fired = True
        try:
            self.action()
        except Exception as error:
            self.error = error
        self._done.set()

    def finish(self) -> None:
        """Wait for the action if it has begun, and raise what it raised."""
        if self.fired:
            self._done.wait()
        if self.error is not None:
            raise self.error

    def asked(self, data: bytes) -> bool:
        """Whether these bytes of a request match."""
        return all(mark in data for mark in self.marks)


class Proxy:
    """Forwards `port` to `target`. `close` ends it. `trigger` and `pause_s` (before every byte of a reply) may be set
    at any time."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.trigger: Trigger | None = None
        self.pause_s = 0.0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections on both sides."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Listen no more, and end all connections."""
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                _Connection(self, client, server).start()

    def register(self, *ends: socket.socket) -> None:
        """Connections that `cut` is to end."""
        with self._lock:
            self._open.update(ends)

    def forget(self, *ends: socket.socket) -> None:
        """Connections that have ended."""
        with self._lock:
            self._open.difference_update(ends)


class _Connection:
    """One client's: two threads, one for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._asked: Trigger | None = None
        self._left = 2

    def start(self) -> None:
        self._proxy.register(self._client, self._server)
        for source, target, look in (
            (self._client, self._server, self._on_request),
            (self._server, self._client, self._on_reply),
        ):
            threading.Thread(target=self._pump, args=(source, target, look), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, look: Callable[[bytes], None]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                look(data)
                self._forward(data, target, slowly=target is self._client)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._proxy.forget(source, target)
        self._left -= 1
        if self._left == 0:
            self._client.close()
            self._server.close()

    def _forward(self, data: bytes, target: socket.socket, *, slowly: bool) -> None:
        at = 0
        while slowly and self._proxy.pause_s and at < len(data):
            time.sleep(self._proxy.pause_s)
            target.sendall(data[at : at + 1])
            at += 1
        target.sendall(data[at:])

    def _on_request(self, data: bytes) -> None:
        trigger = self._proxy.trigger
        if trigger is not None and trigger.at != "reply" and trigger.asked(data):
            self._asked = trigger
            if trigger.at == "request":
                trigger.count()

    def _on_reply(self, data: bytes) -> None:
        trigger = self._proxy.trigger
        if trigger is None:
            return
        if trigger.at == "reply" and trigger.asked(data):
            trigger.count()
        elif trigger.at == "answer" and self._asked is trigger:
            for _ in range(data.count(trigger.then) if trigger.then else 1):
                trigger.count()
