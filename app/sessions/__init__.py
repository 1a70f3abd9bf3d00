"""Sessions: their transcript in the database, their cache on a Redis-protocol server."""

from app.sessions.kv_attempts import PROBE_BYTES
from app.sessions.kv_cipher import Cipher
from app.sessions.kv_client import connect, open_kv_client
from app.sessions.kv_cluster import ping
from app.sessions.kv_frame import CHUNK_BYTES, FrameError
from app.sessions.kv_head import StoredCache, StoredHead, StoredSegment, token_digest
from app.sessions.kv_server import EmbeddedServerError
from app.sessions.kv_store import KVStore, NewCache, Staged
from app.sessions.kv_usage import Quotas
from app.sessions.lease import Lease
from app.sessions.model import Session, TurnRecord
from app.sessions.records import SessionRecords

__all__ = [
    "CHUNK_BYTES",
    "Cipher",
    "EmbeddedServerError",
    "FrameError",
    "PROBE_BYTES",
    "KVStore",
    "Lease",
    "NewCache",
    "Quotas",
    "Session",
    "SessionRecords",
    "Staged",
    "StoredCache",
    "StoredHead",
    "StoredSegment",
    "TurnRecord",
    "connect",
    "open_kv_client",
    "ping",
    "token_digest",
]
