"""Sessions and turns in the database: the truth that a stored cache only accelerates.

Every statement names the tenant, so an id of another tenant is as unknown as one that never existed. A transaction that
writes begins with its write: on SQLite it then holds the write lock before it reads what it decides by. PostgreSQL has
row locks only, so where a decision depends on other rows, `lock_documents` comes first.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, delete, func, insert, literal, select, update

from app.errors import ConflictError, SessionBusyError, SessionNotFoundError
from app.sessions.forget import forget_document, lock_documents
from app.sessions.lease import Lease, try_acquire
from app.sessions.model import Session, TurnRecord, pack_tokens, shorten, unpack_tokens
from app.sessions.tables import create_tables, forgotten_documents, session_documents, sessions, turns


class SessionRecords:
    """Sessions, turns and leases of all tenants. Thread-safe; several processes may share the database.

    Raises StoreError when another version of the service wrote the tables.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        create_tables(engine)

    def create(self, tenant: str, collection: str) -> Session:
        """A new session without turns."""
        now = time.time()
        row = {
            "session_id": f"ses_{secrets.token_urlsafe(18)}",
            "tenant": tenant,
            "collection": collection,
            "title": "",
            "turns": 0,
            "created_at": now,
            "updated_at": now,
        }
        with self._engine.begin() as connection:
            connection.execute(insert(sessions).values(**row, starts_over=True, lease_until=0.0))
        return _session(row)

    def get(self, tenant: str, session_id: str) -> Session:
        """The session. Raises SessionNotFoundError."""
        with self._engine.connect() as connection:
            return _session(_row(connection, tenant, session_id))

    def list(self, tenant: str) -> Sequence[Session]:
        """All sessions of the tenant, last used first."""
        statement = select(sessions).where(sessions.c.tenant == tenant).order_by(sessions.c.updated_at.desc())
        with self._engine.connect() as connection:
            return [_session(row) for row in connection.execute(statement).mappings()]

    def delete(self, tenant: str, session_id: str) -> None:
        """Forget the session and its turns; a turn that still runs cannot commit. Raises SessionNotFoundError."""
        mine = sessions.c.tenant == tenant, sessions.c.session_id == session_id
        with self._engine.begin() as connection:
            if connection.execute(delete(sessions).where(*mine)).rowcount == 0:
                raise SessionNotFoundError(session_id)
            connection.execute(delete(turns).where(turns.c.session_id == session_id))
            connection.execute(delete(session_documents).where(session_documents.c.session_id == session_id))

    @contextmanager
    def lease(self, tenant: str, session_id: str, seconds: float) -> Iterator[Lease]:
        """Hold the session for one turn, `seconds` at a time (`Lease.renew`).

        Raises SessionNotFoundError, and SessionBusyError while another turn holds it.
        """
        lease = try_acquire(self._engine, tenant, session_id, seconds)
        if lease is None:
            self.get(tenant, session_id)
            raise SessionBusyError(session_id)
        try:
            yield lease
        finally:
            lease.release()

    def release_all(self) -> None:
        """End the leases of turns that a crash cut off: for the only process on this database, at its start."""
        with self._engine.begin() as connection:
            connection.execute(update(sessions).values(lease_owner=None, lease_until=0.0))

    def turns(self, tenant: str, session_id: str) -> Sequence[TurnRecord]:
        """The committed turns in order. Raises SessionNotFoundError."""
        statement = select(turns).where(turns.c.session_id == session_id).order_by(turns.c.number)
        with self._engine.connect() as connection:
            _row(connection, tenant, session_id)
            return [_turn(row) for row in connection.execute(statement).mappings()]

    def sequence(self, tenant: str, session_id: str) -> Sequence[int]:
        """All token ids that the next turn may continue: those since the last turn that started over.

        Empty before the first turn and after a document was forgotten. Raises SessionNotFoundError.
        """
        of_session = turns.c.session_id == session_id
        begin = select(func.max(turns.c.number)).where(of_session, turns.c.starts_over).scalar_subquery()
        statement = select(turns.c.token_ids).where(of_session, turns.c.number >= begin).order_by(turns.c.number)
        with self._engine.connect() as connection:
            if _row(connection, tenant, session_id)["starts_over"]:
                return []
            return unpack_tokens(b"".join(connection.scalars(statement)))

    def commit_turn(self, lease: Lease, turn: TurnRecord) -> None:
        """Write the turn in one transaction: it exists from here on, or not at all.

        Raises ConflictError when the lease is lost, the session is gone, `turn.number` is not the next one, or a
        document that the turn holds was forgotten while it ran.
        """
        with self._engine.begin() as connection:
            lock_documents(connection, lease.tenant)
            _advance(connection, lease, turn)
            _refuse_forgotten(connection, lease, turn)
            values = {**asdict(turn), "created_at": turn.created_at.timestamp()}
            values["token_ids"] = pack_tokens(turn.token_ids)
            connection.execute(insert(turns).values(session_id=lease.session_id, **values))
            held = [
                {"tenant": lease.tenant, "session_id": lease.session_id, "number": turn.number, "document_id": document}
                for document in sorted(turn.documents())
            ]
            if held:
                connection.execute(insert(session_documents), held)

    def forget_document(self, tenant: str, document_id: str) -> Sequence[str]:
        """Take the document out of every turn of the tenant, in one transaction.

        Its passages and citation sources go (a citation left without sources too), the tokens of those turns go, and
        their sessions start over at the next turn. Returns these sessions' ids: their stored caches have to be dropped.
        """
        with self._engine.begin() as connection:
            return forget_document(connection, tenant, document_id)


def _advance(connection: Connection, lease: Lease, turn: TurnRecord) -> None:
    now = time.time()
    continues = bool(turn.token_ids) and not turn.starts_over
    statement = (
        update(sessions)
        .where(sessions.c.tenant == lease.tenant, sessions.c.session_id == lease.session_id)
        .where(sessions.c.lease_owner == lease.owner, sessions.c.lease_until > now)
        .where(sessions.c.turns == turn.number - 1)
        .where(sessions.c.starts_over.is_(False) if continues else literal(True))
        .values(turns=turn.number, updated_at=now)
    )
    if turn.number == 1:
        statement = statement.values(title=shorten(turn.message))
    if turn.starts_over:
        statement = statement.values(starts_over=False)
    if connection.execute(statement).rowcount == 0:
        raise ConflictError(lease.session_id)


def _refuse_forgotten(connection: Connection, lease: Lease, turn: TurnRecord) -> None:
    gone = select(forgotten_documents.c.document_id).where(
        forgotten_documents.c.tenant == lease.tenant, forgotten_documents.c.document_id.in_(turn.documents())
    )
    if connection.execute(gone).first() is not None:
        raise ConflictError(lease.session_id)


def _row(connection: Connection, tenant: str, session_id: str) -> RowMapping:
    statement = select(sessions).where(sessions.c.tenant == tenant, sessions.c.session_id == session_id)
    row = connection.execute(statement).mappings().first()
    if row is None:
        raise SessionNotFoundError(session_id)
    return row


def _session(row: RowMapping | dict[str, Any]) -> Session:
    values = {name: row[name] for name in ("session_id", "tenant", "collection", "title", "turns")}
    return Session(**values, created_at=_time(row["created_at"]), updated_at=_time(row["updated_at"]))


def _turn(row: RowMapping) -> TurnRecord:
    values = {name: value for name, value in row.items() if name != "session_id"}
    values |= {"token_ids": unpack_tokens(row["token_ids"]), "created_at": _time(row["created_at"])}
    return TurnRecord(**values)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
