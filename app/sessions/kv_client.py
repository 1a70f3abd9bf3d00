"""The client of the Redis-protocol server that the settings name, or of the embedded one."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from urllib.parse import quote, urlsplit

import redis
from redis.backoff import ConstantBackoff, NoBackoff
from redis.connection import HiredisRespSerializer, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from app.errors import InvalidRequestError
from app.sessions.kv_cluster import ClusterClient
from app.sessions.kv_server import embedded_server, socket_path
from app.settings import Settings

# a connection that the server closed is opened again once; a server that is slow is not asked twice
_RETRY = Retry(ConstantBackoff(0.05), 1, supported_errors=(redis.ConnectionError,))
# a cluster's client would ask a slow server again as well
_NO_RETRY = Retry(NoBackoff(), 0)

# what the system holds back is not sent: the wait for a reply must not include megabytes that are still to go
_TCP = {socket.TCP_NOTSENT_LOWAT: 2**17} if hasattr(socket, "TCP_NOTSENT_LOWAT") else {}

PIECE_BYTES = 2**16


class _Packer(HiredisRespSerializer):
    """Long commands in pieces: a timeout bounds the sending of one piece, and a chunk may take as long as it takes."""

    def pack(self, *args: Any) -> list[bytes | memoryview]:
        packed: bytes = super().pack(*args)[0]
        if len(packed) <= PIECE_BYTES:
            return [packed]
        view = memoryview(packed)
        return [view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES)]


_PACKER = _Packer()


def connect(settings: Settings) -> redis.Redis:
    """A client of the server that the settings name, or of the embedded one if it runs. Contacts nobody yet.

    Raises InvalidRequestError for a URL that is none.
    """
    url = settings.redis_url or f"unix://{quote(str(socket_path(settings.data_dir)))}"
    timeout_s = settings.kv_timeout_ms / 1000
    options: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    options |= {"retry": _RETRY, "protocol": 2}
    if not url.startswith("unix:"):
        options |= {"socket_keepalive": True, "socket_keepalive_options": _TCP}
    try:
        return _client(url, options, {"socket_read_size": 2**18, "client_name": "snaprag"})
    except ValueError:
        # without its cause, which may repeat the password
        raise InvalidRequestError(
            "SNAPRAG_REDIS_URL must be redis://HOST:PORT, rediss://HOST:PORT, unix://PATH, "
            "redis+cluster://HOST:PORT,HOST:PORT or redis+sentinel://HOST:PORT,HOST:PORT/MASTER."
        ) from None


def _client(url: str, options: dict[str, Any], of_data: dict[str, Any]) -> redis.Redis:
    """`options` are for every connection, `of_data` for those to servers that hold data."""
    scheme, _, kind = urlsplit(url).scheme.partition("+")
    if not kind:
        return redis.Redis.from_url(url, **options, **of_data, command_packer=_PACKER)
    nodes, own = _nodes(url), _own_options(url, scheme)
    if kind == "cluster":
        return ClusterClient(nodes, {**options, **of_data, **own, "retry": _NO_RETRY})
    master = urlsplit(url).path.strip("/")
    if kind != "sentinel" or not master:
        raise ValueError("no such kind of URL")
    secure = {name: value for name, value in own.items() if name.startswith("ssl")}
    sentinel = Sentinel(nodes, sentinel_kwargs={**options, **secure}, **{**options, **of_data, **own})
    client: redis.Redis = sentinel.master_for(master, command_packer=_PACKER)
    return client


def _nodes(url: str) -> list[tuple[str, int]]:
    """Host and port of each node that the URL names. Raises ValueError."""
    nodes = [urlsplit(f"//{part}") for part in urlsplit(url).netloc.rpartition("@")[2].split(",")]
    if not all(node.hostname and node.port for node in nodes):
        raise ValueError("a node without host or port")
    return [(node.hostname or "", node.port or 0) for node in nodes]


def _own_options(url: str, scheme: str) -> dict[str, Any]:
    """User, password and query of the URL, and whether to speak TLS. Raises ValueError."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    options = parse_url(f"{scheme}://{user}@host?{parts.query}" if user else f"{scheme}://host?{parts.query}")
    secure = options.pop("connection_class", None) is not None
    del options["host"]
    return {**options, "ssl": True} if secure else options


@contextmanager
def open_kv_client(settings: Settings) -> Iterator[redis.Redis]:
    """The client, with the embedded server running behind it when no URL is set.

    A server that the URL names is not contacted: the service starts without it and finds it when it is there.
    Raises EmbeddedServerError and InvalidRequestError.
    """
    with nullcontext() if settings.redis_url else embedded_server(settings.data_dir, settings.kv_memory_mb):
        client = connect(settings)
        try:
            yield client
        finally:
            client.close()
