"""A client of a cluster that contacts nobody before its first command, as the client of one server does."""

import threading
from collections.abc import Callable
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster


class ClusterClient(redis.Redis):
    """The commands of `redis.Redis`, each sent to the master that has its key. A pipeline may hold keys of several.

    `redis.cluster.RedisCluster` asks the cluster for its slots when it is made, which would keep the service from
    starting without it. Raises RedisClusterException, which is no RedisError, when no node answers.
    """

    def __init__(self, nodes: list[tuple[str, int]], options: dict[str, Any]) -> None:
        super().__init__(*nodes[0], protocol=2)
        self._nodes = nodes
        self._options = options
        self._cluster: RedisCluster | None = None
        self._making = threading.Lock()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return self._opened().execute_command(*args, **options)

    def pipeline(self, transaction: bool | None = None, shard_hint: str | None = None) -> Any:
        pipeline = self._opened().pipeline()
        # what failed in a pipeline is sent again one by one: a server that is slow must not cost a delay for each
        pipeline.parent_execute_command = _until_one_fails(pipeline.parent_execute_command)
        return pipeline

    def scan_iter(self, *args: Any, **options: Any) -> Any:
        return self._opened().scan_iter(*args, **options)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        super().close()

    def disconnect(self) -> None:
        """Close all connections, those in use too."""
        for node in self._cluster.get_nodes() if self._cluster is not None else []:
            if node.redis_connection is not None:
                node.redis_connection.connection_pool.disconnect(inuse_connections=True)

    def _opened(self) -> RedisCluster:
        with self._making:
            if self._cluster is None:
                nodes = [ClusterNode(host, port) for host, port in self._nodes]
                self._cluster = RedisCluster(startup_nodes=nodes, **self._options)
            return self._cluster


def _until_one_fails(execute: Callable[..., Any]) -> Callable[..., Any]:
    failed: list[redis.RedisError] = []

    def run(*args: Any, **options: Any) -> Any:
        if failed:
            raise failed[0]
        try:
            return execute(*args, **options)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            failed.append(error)
            raise

    return run


def ping(client: redis.Redis, nbytes: int) -> None:
    """Send `nbytes` to the server, or to each master of a cluster, and get them back. Raises what the client raises."""
    where = {"target_nodes": "primaries"} if isinstance(client, ClusterClient) else {}
    client.execute_command("PING", bytes(nbytes), **where)


def disconnect(client: redis.Redis) -> None:
    """Close all connections of a client, those in use too."""
    if isinstance(client, ClusterClient):
        client.disconnect()
    else:
        client.connection_pool.disconnect(inuse_connections=True)
