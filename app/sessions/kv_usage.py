"""The account of what sessions hold on the server, and who is to go when a quota is exceeded.

Its keys lie in one slot of a cluster and each session's keys in another, so no script can change both. The account is
therefore written after the fact and repaired, once a minute at most, from the keys that are there: what the server
evicted, what a turn that was killed left, and the account itself if it was evicted.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import redis

from app.sessions.kv_deadline import Deadline
from app.sessions.kv_frame import parse_prefix
from app.sessions.kv_usage_scripts import FORGET, HELD, RECORD, REPAIR, TOUCH

REPAIR_S = 60.0
_PAGE = 1000
_KEYS = ["snaprag:{usage}:last", "snaprag:{usage}:sizes", "snaprag:{usage}:sums"]


@dataclass(frozen=True)
class Quotas:
    """Bytes of chunks as stored, None for no limit."""

    tenant: int | None = None
    total: int | None = None

    def allow(self, nbytes: int) -> bool:
        """Whether one cache of this size can be kept at all."""
        return all(quota is None or nbytes <= quota for quota in (self.tenant, self.total))


@dataclass(frozen=True)
class Excess:
    """A session beyond a quota; `last_use` is its score in the account when it was chosen."""

    prefix: str
    last_use: bytes


class Usage:
    """The account on one server. Raises redis.RedisError."""

    def __init__(self, client: redis.Redis, ttl_s: int, quotas: Quotas) -> None:
        self._client = client
        self._ttl_s = ttl_s
        self._quotas = quotas
        self._repaired = float("-inf")
        scripts = (RECORD, TOUCH, FORGET, HELD, REPAIR)
        self._record, self._touch, self._forget, self._held, self._repair = map(client.register_script, scripts)

    def record(self, prefix: str, nbytes: int) -> list[Excess]:
        """Note what a session holds now. The sessions that must go for it: `forget` each once it is dropped."""
        tenant, _ = parse_prefix(prefix)
        quotas = ["" if quota is None else quota for quota in (self._quotas.tenant, self._quotas.total)]
        chosen = self._record(keys=_KEYS, args=[prefix, tenant, nbytes, self._ttl_s, *quotas])
        excess = [
            Excess(name.decode(errors="replace"), score) for name, score in zip(chosen[::2], chosen[1::2], strict=True)
        ]
        return [session for session in excess if _is_session(session.prefix)]

    def touch(self, prefix: str) -> None:
        """Note that a session was used. A server that is full refuses it, and the session counts as older."""
        with suppress(redis.ResponseError):
            self._touch(keys=_KEYS, args=[prefix, self._ttl_s])

    def forget(self, prefix: str, last_use: bytes = b"") -> None:
        """Take a session out; with `last_use`, only if it was not used since."""
        self._forget(keys=_KEYS, args=[prefix, last_use])

    def held(self) -> int:
        """Bytes of chunks on the server, by the account."""
        return int(self._held(keys=_KEYS))

    def repair_is_due(self) -> bool:
        """Whether this process has not repaired the account for a minute."""
        return time.monotonic() - self._repaired >= REPAIR_S

    def repair(self, deadline: Deadline) -> tuple[str, None]:
        """Correct the account by the keys that are there. An outcome and nothing."""
        self._repaired = time.monotonic()
        noted = self._client.hgetall(_KEYS[1])
        dated = {name for name in self._client.zrange(_KEYS[0], 0, -1) if isinstance(name, bytes)}
        found: dict[bytes | str, tuple[bytes, int]] = {
            name.encode(): held for name, held in self._found(deadline).items()
        }
        changes: list[bytes | str | int] = []
        for name in noted.keys() | found.keys() | dated:
            entry, ttl = found.get(name, (b"", 0))
            if entry != noted.get(name) or (name in found) != (name in dated):
                changes += [name, noted.get(name, b""), entry, ttl]
        self._repair(keys=_KEYS, args=changes)
        return "repaired", None

    def _found(self, deadline: Deadline) -> dict[str, tuple[bytes, int]]:
        """Session -> its true entry and the seconds until its last chunk expires."""
        sizes: defaultdict[str, int] = defaultdict(int)
        ttls: defaultdict[str, int] = defaultdict(int)
        for key, size, ttl in self._chunks(deadline):
            prefix = key.rpartition(":seg:")[0]
            sizes[prefix] += size
            ttls[prefix] = max(ttls[prefix], ttl)
        return {
            prefix: (f"{size}:{parse_prefix(prefix)[0]}".encode(), ttls[prefix])
            for prefix, size in sizes.items()
            if _is_session(prefix)
        }

    def _chunks(self, deadline: Deadline) -> Iterator[tuple[str, int, int]]:
        """Name, bytes and seconds to live of every chunk."""
        names = self._client.scan_iter("snaprag:*:seg:*", count=_PAGE)
        while keys := list(islice(names, _PAGE)):
            deadline.check()
            window = self._client.pipeline(transaction=False)
            for key in keys:
                window.strlen(key)
                window.ttl(key)
            answers = window.execute(raise_on_error=False)
            for key, size, ttl in zip(keys, answers[::2], answers[1::2], strict=True):
                # not those that are gone meanwhile or are no chunks
                if isinstance(size, int) and isinstance(ttl, int) and ttl >= 0:
                    yield key.decode(errors="replace"), size, ttl


def _is_session(prefix: str) -> bool:
    # others than this service may write to the server
    try:
        parse_prefix(prefix)
    except ValueError:
        return False
    return True
