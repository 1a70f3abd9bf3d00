"""What faults are tried on: a service, a server, and a proxy in front of each of them."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.cli.client import Client
from benchmarks.asking import ingest
from benchmarks.service import ServiceProcess
from evals.faults.proxy import Proxy, Trigger
from evals.faults.scripts import SCRIPTS
from evals.faults.server import Server

KEYS = ("key-one", "key-two")
LOG_TAIL = 4000


class Stand:
    """Turns go to `door`, in front of the service; the service reaches the server by `store`, in front of that."""

    def __init__(self, service: ServiceProcess, server: Server, door: Proxy, store: Proxy) -> None:
        self.service, self.server, self.door, self.store = service, server, door, store

    @property
    def url(self) -> str:
        """The service's, by way of its door."""
        return f"http://127.0.0.1:{self.door.port}"

    def arm(self, where: str, trigger: Trigger) -> None:
        """Let the trigger wait at `door` or `store`."""
        (self.door if where == "door" else self.store).trigger = trigger

    def disarm(self) -> None:
        """No trigger waits, and nothing is slow."""
        for proxy in (self.door, self.store):
            proxy.trigger, proxy.pause_s = None, 0.0

    def heal(self) -> None:
        """Everything runs again, as if nothing had been done to it."""
        self.disarm()
        self.server.heal()
        if not self.service.runs:
            self.service.start()

    def get(self, key: str, path: str) -> dict[str, Any]:
        """GET, past the door."""
        answer = self._http(key, "GET", path)
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body

    def delete_all(self) -> None:
        """Delete the sessions of both tenants."""
        for key in KEYS:
            for session in self.get(key, "/sessions")["sessions"]:
                answer = self._http(key, "DELETE", f"/sessions/{session['session_id']}")
                if answer.status_code != 404:  # a first turn that ended badly may have taken its session with it
                    answer.raise_for_status()

    def log_tail(self) -> str:
        """The end of the service's log."""
        return self.service.log.read_text(errors="replace")[-LOG_TAIL:]

    def _http(self, key: str, method: str, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=self.service.url, headers=headers, timeout=60, trust_env=False) as client:
            return client.request(method, path)


@contextmanager
def open_stand() -> Iterator[Stand]:
    """A stand in a temporary folder, every script's document ingested for both tenants."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        server = Server(folder / "server")
        opened.callback(server.stop)
        server.start()
        store = Proxy(server.port)
        opened.callback(store.close)
        environment = {
            "SNAPRAG_API_KEYS": ",".join(KEYS),
            "SNAPRAG_REDIS_URL": f"redis://127.0.0.1:{store.port}/0",
            # a cache that loses nothing: a turn from it then equals one that is computed anew
            "SNAPRAG_DTYPE": "float32",
            "SNAPRAG_ARCHIVE": "full",
            "SNAPRAG_ARCHIVE_FORMAT": "raw",
        }
        service = opened.enter_context(ServiceProcess(folder / "data", environment))
        door = Proxy(service.port)
        opened.callback(door.close)
        for key in KEYS:
            with Client(service.url, key) as client:
                for script in SCRIPTS:
                    path = folder / f"{script.name}.md"
                    path.write_text(script.document)
                    ingest(client, path, script.name)
        yield Stand(service, server, door, store)
