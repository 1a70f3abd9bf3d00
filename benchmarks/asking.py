"""Asking a running service, with and without what it has stored for a session."""

import time
from pathlib import Path
from typing import Any

import psutil

from app.cli.client import Client
from app.sessions import KVStore, connect
from app.settings import Settings

LOCAL_TENANT = "local"


def ingest(client: Client, path: Path, collection: str) -> dict[str, Any]:
    """Upload a document and wait until it is ready."""
    document = client.upload(path, collection)
    while document["status"] in ("queued", "processing"):
        time.sleep(0.2)
        document = client.get(f"/documents/{document['document_id']}")
    if document["status"] != "ready":
        raise RuntimeError(document["error"])
    return document


def ask(client: Client, message: str, session_id: str | None = None, **options: Any) -> dict[str, Any]:
    """One turn of a session; its answer object."""
    body = {"message": message, **options, **({"session_id": session_id} if session_id else {})}
    answer: dict[str, Any] = {}
    for name, data in client.stream("/chat", body):
        if name == "done":
            answer = data
    return answer


def drop_cache(data_dir: Path, session_id: str) -> None:
    """Take away what the embedded server holds of a session, so that its next turn computes everything."""
    settings = Settings(data_dir=data_dir, redis_url=None)
    client = connect(settings)
    try:
        KVStore(client, ttl_s=settings.kv_ttl_s).drop(LOCAL_TENANT, session_id)
    finally:
        client.close()


def resident_bytes(pid: int) -> int:
    """Resident memory of one process."""
    return int(psutil.Process(pid).memory_info().rss)
