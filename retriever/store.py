"""The documents' rows: one function for each thing that happens to them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, Select, literal, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from retriever import lexical
from retriever.chunk import MAX_TITLE_CHARS, SECTION_SEPARATOR, Span
from retriever.database import changes, documents, passages
from retriever.errors import DocumentNotFoundError
from retriever.model import Document, Extracted, Passage

_PARAMETERS = 10_000  # of one statement: databases have limits
_COLUMNS = [column for column in documents.c if column.name not in ("text", "embedder")]


def insert(connection: Connection, document_id: str, tenant: str, collection: str, filename: str) -> None:
    """A new document, queued."""
    connection.execute(
        documents.insert().values(
            document_id=document_id,
            tenant=tenant,
            collection=collection,
            filename=filename,
            title=filename,
            status="queued",
            created_at=datetime.now(UTC).isoformat(),
        )
    )


def get(connection: Connection, tenant: str, document_id: str) -> Document:
    """DocumentNotFoundError when there is none for this tenant."""
    query = select(*_COLUMNS).where(documents.c.document_id == document_id, documents.c.tenant == tenant)
    row = connection.execute(query).first()
    if row is None:
        raise DocumentNotFoundError(document_id)
    return _document(row)


def listing(connection: Connection, tenant: str, collection: str | None) -> list[Document]:
    """The tenant's documents, newest first."""
    query = select(*_COLUMNS).where(documents.c.tenant == tenant)
    if collection is not None:
        query = query.where(documents.c.collection == collection)
    return [_document(row) for row in connection.execute(query.order_by(documents.c.created_at.desc()))]


def update(connection: Connection, document_id: str, **values: Any) -> bool:
    """Set columns; False when the document has been deleted."""
    query = documents.update().where(documents.c.document_id == document_id).values(**values)
    return connection.execute(query).rowcount == 1


def requeue_interrupted(connection: Connection, embedder: str) -> None:
    """What a stop interrupted, and what another embedder made, is queued again."""
    interrupted = documents.c.status == "processing"
    outdated = (documents.c.status == "ready") & (documents.c.embedder != embedder)
    connection.execute(documents.update().where(interrupted | outdated).values(status="queued", progress=0.0))


def undone(connection: Connection) -> list[tuple[str, str]]:
    """Ids and file names of the documents that are not done, oldest first.

    One thread ingests, so what is processing when it asks is what an error interrupted.
    """
    columns = (documents.c.document_id, documents.c.filename)
    open_ = documents.c.status.in_(("queued", "processing"))
    rows = connection.execute(select(*columns).where(open_).order_by(documents.c.created_at))
    return [(row[0], row[1]) for row in rows]


def publish(
    connection: Connection,
    document_id: str,
    extracted: Extracted,
    spans: Sequence[Span],
    vectors: NDArray[np.float32],
    embedder: str,
) -> bool:
    """Write the passages with their vectors and words, and make the document ready; False when it has been deleted."""
    # first, so that the row is locked before anything is read
    ready = update(
        connection,
        document_id,
        status="ready",
        error=None,
        progress=1.0,
        title=extracted.title or documents.c.filename,
        text=extracted.text,
        pages=len(extracted.pages),
        passages=len(spans),
        warnings=json.dumps(extracted.warnings),
        embedder=embedder,
    )
    if not ready:
        return False
    clear_passages(connection, document_id)
    rows: list[dict[str, Any]] = [
        {
            "document_id": document_id,
            "ordinal": i,
            "page": s.page,
            "start": s.start,
            "end": s.end,
            "section": s.section,
            "text": extracted.text[s.start : s.end],
            "vector": v.tobytes(),
        }
        for i, (s, v) in enumerate(zip(spans, vectors, strict=True))
    ]
    connection.execute(passages.insert(), rows)
    numbers = numbers_of(connection, document_id)
    lexical.add(connection, numbers, [row["text"] for row in rows])
    note_change(connection, document_id)
    return True


def note_change(connection: Connection, document_id: str) -> None:
    """The passages of a document's collection changed: every process has to look again."""
    place = select(documents.c.tenant, documents.c.collection, literal(1)).where(documents.c.document_id == document_id)
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(changes).from_select(["tenant", "collection", "count"], place)
    again = {"count": changes.c.count + 1}
    connection.execute(statement.on_conflict_do_update(index_elements=["tenant", "collection"], set_=again))


def changes_of(connection: Connection, tenant: str, collection: str) -> int:
    """How often a collection changed."""
    query = select(changes.c.count).where(changes.c.tenant == tenant, changes.c.collection == collection)
    return connection.execute(query).scalar() or 0


def clear_passages(connection: Connection, document_id: str) -> None:
    """Passages, words and vectors of a document."""
    lexical.remove(connection, document_id)
    connection.execute(passages.delete().where(passages.c.document_id == document_id))


def delete(connection: Connection, document_id: str) -> None:
    """The document and all that was made from it."""
    note_change(connection, document_id)
    clear_passages(connection, document_id)
    connection.execute(documents.delete().where(documents.c.document_id == document_id))


def numbers_of(connection: Connection, document_id: str) -> list[int]:
    """The numbers of a document's passages, in their order."""
    query = select(passages.c.number).where(passages.c.document_id == document_id).order_by(passages.c.ordinal)
    return [row[0] for row in connection.execute(query)]


def indexed_numbers(connection: Connection, tenant: str, collection: str, embedder: str) -> set[int]:
    """Numbers of all passages of ready documents in a collection that `embedder` has made."""
    query = (
        select(passages.c.number)
        .join(documents)
        .where(documents.c.tenant == tenant, documents.c.collection == collection, documents.c.status == "ready")
        .where(documents.c.embedder == embedder)
    )
    return set(connection.execute(query).scalars())


def vectors_of(connection: Connection, numbers: Sequence[int]) -> dict[int, bytes]:
    """Vectors of passages; those that are gone are left out."""
    found: dict[int, bytes] = {}
    for start in range(0, len(numbers), _PARAMETERS):
        some = passages.c.number.in_(numbers[start : start + _PARAMETERS])
        found.update(
            (row[0], row[1]) for row in connection.execute(select(passages.c.number, passages.c.vector).where(some))
        )
    return found


def passages_by_number(connection: Connection, tenant: str, numbers: Sequence[int]) -> dict[int, Passage]:
    """Passages of the tenant's ready documents."""
    rows = connection.execute(_passages(tenant).where(passages.c.number.in_(numbers)))
    return {row.number: _passage(row) for row in rows}


def passages_by_id(connection: Connection, tenant: str, passage_ids: Sequence[str]) -> list[Passage]:
    """Passages of the tenant's ready documents, in the order asked for; those that are gone are left out."""
    wanted = [_key(passage_id) for passage_id in passage_ids]
    rows = connection.execute(_passages(tenant).where(tuple_(passages.c.document_id, passages.c.ordinal).in_(wanted)))
    found = {passage.passage_id: passage for passage in map(_passage, rows)}
    return [found[passage_id] for passage_id in passage_ids if passage_id in found]


def _passages(tenant: str) -> Select[Any]:
    columns = [column for column in passages.c if column.name != "vector"]
    return (
        select(*columns, documents.c.title)
        .join(documents)
        .where(documents.c.tenant == tenant, documents.c.status == "ready")
    )


def _passage(row: Row[Any]) -> Passage:
    return Passage(
        passage_id=f"{row.document_id}:{row.ordinal}",
        document_id=row.document_id,
        title=_title(row.title, row.section),
        page=row.page,
        start=row.start,
        end=row.end,
        text=row.text,
    )


def _title(title: str, section: str) -> str:
    """The document's title and the headings above a passage; a first heading that is the title is said once."""
    first, *rest = section.split(SECTION_SEPARATOR)
    shown = [] if first in ("", title[:MAX_TITLE_CHARS]) else [first]
    return SECTION_SEPARATOR.join([title, *shown, *rest])


def _key(passage_id: str) -> tuple[str, int]:
    """Document id and ordinal; an ordinal that no passage has for what is not a passage id."""
    document_id, _, ordinal = passage_id.rpartition(":")
    return document_id, int(ordinal) if ordinal.isdecimal() and len(ordinal) < 10 else -1


def _document(row: Row[Any]) -> Document:
    values = dict(row._mapping)
    del values["tenant"]
    values["warnings"] = json.loads(values["warnings"])
    return Document(**values)


def all_ids(connection: Connection) -> set[str]:
    """Ids of all documents of all tenants."""
    return set(connection.execute(select(documents.c.document_id)).scalars())
