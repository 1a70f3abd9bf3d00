"""A service of its own for one run: a child process on a free port of loopback, with a data directory of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from app.cli.client import Client, ServiceError
from app.settings import Settings

START_S = 120.0


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class ServiceProcess:
    """`snaprag serve` in a child process. `start` and `stop` (or `kill`) in pairs; the data directory outlives them.

    The models are those of the settings' data directory, linked into this one.
    """

    def __init__(self, data_dir: Path, environment: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.log = data_dir / "service.log"
        self._environment = {**os.environ, **(environment or {}), "SNAPRAG_DATA_DIR": str(data_dir)}
        self._process: subprocess.Popen[bytes] | None = None
        data_dir.mkdir(parents=True, exist_ok=True)
        models = data_dir / "models"
        if not models.exists():
            models.symlink_to(Settings().models_dir.resolve())

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The child's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether the child has started and not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> "ServiceProcess":
        """Start it and wait until it is ready. RuntimeError with the end of its log when it does not come up."""
        command = [sys.executable, "-m", "app.cli", "serve", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._is_ready():
                return self
            time.sleep(0.1)
        raise RuntimeError(f"the service did not start:\n{self.log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        """Ask it to stop, and wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> "ServiceProcess":
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _end(self, signal_number: signal.Signals) -> None:
        if self._process is not None and self.runs:
            self._process.send_signal(signal_number)
            self._process.wait(timeout=60)

    def _is_ready(self) -> bool:
        try:
            with Client(self.url, None) as client:
                return bool(client.get("/health/ready")["status"] == "ok")
        except (ServiceError, KeyError, TypeError):
            return False
