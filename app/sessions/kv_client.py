"""The client of the Redis-protocol server that the settings name, or of the embedded one."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from urllib.parse import quote

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from app.errors import InvalidRequestError
from app.sessions.kv_server import embedded_server, socket_path
from app.settings import Settings

# a connection that the server closed is opened again once; a server that is slow is not asked twice
_RETRY = Retry(ConstantBackoff(0.05), 1, supported_errors=(redis.ConnectionError,))


def connect(settings: Settings) -> redis.Redis:
    """A client of the server that the settings name, or of the embedded one if it runs. Contacts nobody yet.

    Raises InvalidRequestError for a URL that is none.
    """
    url = settings.redis_url or f"unix://{quote(str(socket_path(settings.data_dir)))}"
    timeout_s = settings.kv_timeout_ms / 1000
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            socket_read_size=2**18,
            retry=_RETRY,
            protocol=2,
            client_name="snaprag",
        )
    except ValueError as error:
        raise InvalidRequestError("SNAPRAG_REDIS_URL must start with redis://, rediss:// or unix://.") from error


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
