"""`snaprag doctor`: what is well, what is not, and what to do about it. Reads only; starts nothing."""

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import redis
from rich.console import Console

from app.address import check_address
from app.engine.pull import PACKAGES, is_pulled, verify
from app.errors import SnapragError
from app.sessions import PROBE_BYTES, connect, ping
from app.settings import Settings

LOW_DISK_BYTES = 2 * 2**30
SCANNED_KEYS = 1000
_STYLE = {"ok": "green", "info": "blue", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True)
class Finding:
    """`level`: ok, info, warn or fail."""

    level: str
    subject: str
    text: str


def run_checks(console: Console) -> int:
    """Print all findings; 1 when one of them is a failure."""
    settings = Settings()
    checks: tuple[Callable[[Settings], Iterator[Finding]], ...] = (_address, _disk, _models, _database, _key_values)
    findings = [finding for check in checks for finding in check(settings)]
    for finding in findings:
        console.print(f"{finding.level:<5}", style=_STYLE[finding.level], end="")
        console.print(f"{finding.subject}: {finding.text}", markup=False, highlight=False)
    return int(any(finding.level == "fail" for finding in findings))


def _address(settings: Settings) -> Iterator[Finding]:
    try:
        check_address(settings)
    except SnapragError as error:
        yield Finding("fail", "address", str(error))
        return
    keys = len(settings.api_keys)
    yield Finding("ok", "address", f"{settings.host}:{settings.port}, {keys or 'no'} API key{'s' if keys != 1 else ''}")


def _disk(settings: Settings) -> Iterator[Finding]:
    folder = settings.data_dir
    if not folder.is_dir():
        yield Finding("info", "data directory", f"{folder} does not exist yet; 'snaprag serve' makes it")
        return
    free = shutil.disk_usage(folder).free
    level = "ok" if free > LOW_DISK_BYTES else "warn"
    yield Finding(level, "data directory", f"{folder}, {free / 2**30:.1f} GiB free on its disk")


def _models(settings: Settings) -> Iterator[Finding]:
    for package in PACKAGES:
        if package.name not in (settings.model, settings.embedder):
            continue
        if not is_pulled(settings.models_dir, package.name):
            yield Finding("fail", "model", f"{package.name} is missing: run 'snaprag models pull'")
        elif damaged := verify(settings.models_dir, package.name):
            yield Finding(
                "fail", "model", f"{package.name} is damaged ({', '.join(damaged)}): run 'snaprag models pull'"
            )
        else:
            yield Finding("ok", "model", f"{package.name}, all files as they were written")


def _database(settings: Settings) -> Iterator[Finding]:
    path = settings.data_dir / "snaprag.db"
    if settings.database_url is not None:
        yield Finding("info", "database", "named by SNAPRAG_DATABASE_URL; not checked")
        return
    if not path.is_file():
        yield Finding("info", "database", "none yet")
        return
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
        (state,) = connection.execute("PRAGMA quick_check").fetchone()
        counts = dict(connection.execute("SELECT status, count(*) FROM documents GROUP BY status").fetchall())
        (passages,) = connection.execute("SELECT count(*) FROM passages").fetchone()
        (words,) = connection.execute("SELECT count(*) FROM passages_fts").fetchone()
        connection.close()
    except sqlite3.Error as error:
        yield Finding("fail", "database", f"{path} cannot be read ({error}): restore it, or move it away to begin anew")
        return
    if state != "ok":
        yield Finding("fail", "database", f"{path} is damaged ({state}): restore it, or move it away to begin anew")
    documents = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no documents"
    yield Finding("ok", "database", documents)
    level = "ok" if passages == words else "fail"
    yield Finding(level, "index", f"{passages} passages, {words} of them in the word index")


def _key_values(settings: Settings) -> Iterator[Finding]:
    name = "Redis" if settings.redis_url else "embedded server"
    client = connect(settings)
    try:
        yield from _speed(name, client, settings)
        server = client.info("server")
        memory = client.info("memory")
        yield Finding("ok", name, f"version {server.get('valkey_version') or server['redis_version']}")
        yield from _memory(name, memory)
        yield from _expiry(name, client)
    except redis.AuthenticationError as error:
        yield Finding("fail", name, f"refuses the user or password: {error}. Correct SNAPRAG_REDIS_URL")
    except (redis.RedisError, redis.exceptions.RedisClusterException, OSError) as error:
        if settings.redis_url:
            yield Finding("fail", name, f"not reachable ({error}): start it, or correct SNAPRAG_REDIS_URL")
        else:
            yield Finding("info", name, "not running; it runs while the service does")
    finally:
        client.close()


def _speed(name: str, client: redis.Redis, settings: Settings) -> Iterator[Finding]:
    client.ping()  # the connection
    started = time.perf_counter()
    ping(client, PROBE_BYTES)
    taken = (time.perf_counter() - started) * 1000
    limit = settings.kv_timeout_ms
    said = f"{PROBE_BYTES // 1024} KiB there and back in {taken:.1f} ms"
    if taken < limit / 2:
        yield Finding("ok", name, said)
    else:
        advice = f"SNAPRAG_KV_TIMEOUT_MS is {limit}: the service may do without it"
        yield Finding("warn", name, f"{said}; {advice}")


def _memory(name: str, memory: dict[str, object]) -> Iterator[Finding]:
    limit, used, policy = (
        int(str(memory["maxmemory"])),
        int(str(memory["used_memory"])),
        str(memory["maxmemory_policy"]),
    )
    if limit == 0:
        yield Finding("warn", name, "has no memory limit: set maxmemory, or it grows until the machine is full")
    elif policy == "noeviction":
        yield Finding("warn", name, "evicts nothing: when it is full, no new session is cached. Set allkeys-lru")
    else:
        yield Finding("ok", name, f"{used / 2**20:.0f} of {limit / 2**20:.0f} MiB used, {policy}")


def _expiry(name: str, client: redis.Redis) -> Iterator[Finding]:
    keys = [key for _, key in zip(range(SCANNED_KEYS), client.scan_iter("snaprag:*", count=500), strict=False)]
    forever = sum(client.ttl(key) == -1 for key in keys)
    level = "warn" if forever else "ok"
    yield Finding(level, name, f"{len(keys)} keys of snaprag looked at, {forever} of them without an expiry")
