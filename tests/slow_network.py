"""A network between a service and its server that carries so many bytes a second."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass
class Network:
    """`up` and `down` are bytes a second to and from the server; they may be set at any time."""

    port: int
    up: float
    down: float


@contextlib.contextmanager
def slow_network_to(port: int, bytes_per_s: float) -> Iterator[Network]:
    """A port that leads to `port`, in each direction at this speed, and with little room on the way."""

    def pump(source: socket.socket, target: socket.socket, way: Literal["up", "down"]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**14):
                time.sleep(len(data) / getattr(network, way))
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near = listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", port))
                ends.extend((near, far))
                for way in ((near, far, "up"), (far, near, "down")):
                    threading.Thread(target=pump, args=way, daemon=True).start()

    ends: list[socket.socket] = []
    with contextlib.ExitStack() as closing, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        network = Network(listener.getsockname()[1], bytes_per_s, bytes_per_s)
        threading.Thread(target=accept, daemon=True).start()
        yield network
        listener.shutdown(socket.SHUT_RDWR)
        for end in ends:
            closing.enter_context(end)
