"""Taking a deleted document out of the transcripts that hold text of it."""

from typing import Any

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update

from app.sessions.tables import forgotten_documents, session_documents, sessions, turns


def lock_documents(connection: Connection, tenant: str) -> None:
    """Until the transaction ends, no turn of the tenant is committed and no document forgotten beside this one.

    SQLite's transactions that write come one after another anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(tenant, 0))))


def forget_document(connection: Connection, tenant: str, document_id: str) -> list[str]:
    """See `SessionRecords.forget_document`; the caller owns the transaction."""
    lock_documents(connection, tenant)
    mark = forgotten_documents.c
    known = {"tenant": tenant, "document_id": document_id}
    # a delete that is repeated must not fail; deleting first also takes the write lock before anything is read
    connection.execute(delete(forgotten_documents).where(mark.tenant == tenant, mark.document_id == document_id))
    connection.execute(insert(forgotten_documents).values(**known))

    held = session_documents.c
    of_document = held.tenant == tenant, held.document_id == document_id
    statement = (
        select(turns.c.session_id, turns.c.number, turns.c.passages, turns.c.citations)
        .join(session_documents, (held.session_id == turns.c.session_id) & (held.number == turns.c.number))
        .where(*of_document)
    )
    rows = connection.execute(statement).mappings().all()
    session_ids = sorted({row["session_id"] for row in rows})
    for session_id in session_ids:  # before their turns, in the order of a session that is deleted
        mine = sessions.c.tenant == tenant, sessions.c.session_id == session_id
        connection.execute(update(sessions).where(*mine).values(starts_over=True))
    for row in rows:
        _forget_in_turn(connection, row, document_id)
    connection.execute(delete(session_documents).where(*of_document))
    return session_ids


def _forget_in_turn(connection: Connection, row: RowMapping, document_id: str) -> None:
    citations = [{**citation, "sources": _without(citation["sources"], document_id)} for citation in row["citations"]]
    connection.execute(
        update(turns)
        .where(turns.c.session_id == row["session_id"], turns.c.number == row["number"])
        .values(
            passages=_without(row["passages"], document_id),
            citations=[citation for citation in citations if citation["sources"]],
            token_ids=b"",
        )
    )


def _without(items: list[dict[str, Any]], document_id: str) -> list[dict[str, Any]]:
    return [item for item in items if item["document_id"] != document_id]
