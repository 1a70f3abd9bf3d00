"""Holds the embedded server for as long as the service lives. A program of its own, with the standard library only.

    python kv_guard.py LOCK_FD SERVER ARGUMENT…

Standard input is a pipe that the service never writes to: its end says that the service is gone, however it went, and
the server is then told to stop, which it does after writing its data. The server inherits LOCK_FD, the lock of the data
directory, so the lock is held until the last of service, guard and server has ended. A server that dies is started
again; when it does not run at all, the guard ends with its status.
"""

import ctypes
import select
import signal
import subprocess
import sys
import time

POLL_S = 0.2
EARLY_S = 5.0
EARLY_DEATHS = 3
STOP_S = 20.0
_PR_SET_PDEATHSIG = 1


def _end_with_guard() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _start(lock_fd: int, command: list[str]) -> subprocess.Popen[bytes]:
    # the guard has one thread and runs little code: what preexec_fn is unsafe for cannot happen here
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(lock_fd,), preexec_fn=_end_with_guard)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main(lock_fd: int, command: list[str]) -> int:
    """Guard the server until standard input ends. The exit status is the server's if it does not run at all."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server, started, deaths = _start(lock_fd, command), time.monotonic(), 0
    try:
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
            if server.poll() is None:
                continue
            deaths = deaths + 1 if time.monotonic() - started < EARLY_S else 0
            # a server that ends by itself so soon refuses its options or its data; one that was killed may try again
            if deaths == EARLY_DEATHS or (deaths and server.returncode >= 0):
                return server.returncode
            server, started = _start(lock_fd, command), time.monotonic()
        return 0
    finally:
        _stop(server)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
