"""A session's keys as they lie on the server: found, read and written past the service."""

import redis

from app.sessions.kv_head import FIELDS, StoredHead, head_fields, parse_head


class StoredSession:
    """What the server holds of one session, whoever's it is."""

    def __init__(self, client: redis.Redis, session_id: str) -> None:
        self.client = client
        found: list[bytes] = list(client.scan_iter(f"snaprag:*:{session_id}}}:head", count=1000))
        self.prefix = found[0].decode().removesuffix(":head") if found else ""

    @property
    def exists(self) -> bool:
        """Whether there is a head."""
        return bool(self.prefix)

    def head(self) -> StoredHead:
        """As it is; FrameError when it cannot be read."""
        values: list[bytes | None] = self.client.hmget(f"{self.prefix}:head", FIELDS)  # type: ignore[assignment]
        return parse_head(self.prefix, values)

    def chunks(self) -> list[str]:
        """The names of all chunks that the head lists."""
        return self.head().keys(self.prefix)

    def put_head(self, head: StoredHead) -> None:
        """A head with a digest that is right, whatever it says."""
        self.client.hset(f"{self.prefix}:head", mapping=head_fields(self.prefix, head))  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        """The value of a chunk."""
        value: bytes = self.client.get(key) or b""  # type: ignore[assignment]
        return value

    def put(self, key: str, value: bytes) -> None:
        """The value of a chunk, its time to live as before."""
        self.client.set(key, value, keepttl=True)

    def copy(self) -> dict[str, bytes]:
        """Every key (without the prefix) as the server dumps it."""
        keys: list[bytes] = list(self.client.scan_iter(f"{self.prefix}:*", count=1000))
        return {key.decode().removeprefix(self.prefix): self.client.dump(key) for key in keys}  # type: ignore[misc]

    def paste(self, dumps: dict[str, bytes]) -> None:
        """Put dumped keys in the place of this session's."""
        for name, dump in dumps.items():
            self.client.restore(self.prefix + name, 3_600_000, dump, replace=True)
