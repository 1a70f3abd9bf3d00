"""What a Redis-protocol server says of itself and holds for this service. It walks all keys: for `doctor` only."""

from dataclasses import dataclass
from typing import Any

import redis

_SCAN_COUNT = 1000


@dataclass(frozen=True)
class ServerReport:
    """`max_memory` 0 means no limit; `cache_bytes` sums what the heads of all sessions list."""

    version: str
    used_memory: int
    max_memory: int
    eviction_policy: str
    sessions: int
    cache_bytes: int
    keys_without_ttl: int


def inspect_server(client: redis.Redis) -> ServerReport:
    """Ask the server. Raises redis.RedisError when it does not answer."""
    info: dict[str, Any] = client.info()
    sessions = cache_bytes = without_ttl = 0
    for keys in _pages(client):
        window = client.pipeline(transaction=False)
        for key in keys:
            window.ttl(key)
        without_ttl += sum(ttl == -1 for ttl in window.execute())
        sizes = _head_sizes(client, [key for key in keys if key.endswith(b":head")])
        sessions += len(sizes)
        cache_bytes += sum(sizes)
    return ServerReport(
        version=info.get("valkey_version") or info["redis_version"],
        used_memory=info["used_memory"],
        max_memory=info["maxmemory"],
        eviction_policy=info["maxmemory_policy"],
        sessions=sessions,
        cache_bytes=cache_bytes,
        keys_without_ttl=without_ttl,
    )


def _pages(client: redis.Redis) -> "list[list[bytes]]":
    keys = list(client.scan_iter("snaprag:*", count=_SCAN_COUNT))
    return [keys[start : start + _SCAN_COUNT] for start in range(0, len(keys), _SCAN_COUNT)]


def _head_sizes(client: redis.Redis, heads: list[bytes]) -> list[int]:
    window = client.pipeline(transaction=False)
    for key in heads:
        window.hget(key, "bytes")
    return [int(size) for size in window.execute() if size and size.isdigit()]
