"""The word index on SQLite: its FTS5, which is given words that were made by `retriever.lexical`."""

from collections.abc import Sequence

from sqlalchemy import Connection, text

_TABLE = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS passages_fts USING "
    "fts5(words, tokenize = \"unicode61 remove_diacritics 0 categories 'L* N* M* Co'\")"
)


def create(connection: Connection) -> None:
    """Make what is missing."""
    connection.execute(text(_TABLE))


def search(connection: Connection, tenant: str, collection: str, words: Sequence[str], limit: int) -> dict[int, float]:
    """BM25 of the passages that hold some of the words, by number, best first."""
    # letters and digits only, so that quotes make of each a word and never an operator
    match = " OR ".join(f'"{word}"' for word in words)
    rows = connection.execute(
        text(
            "SELECT f.rowid, -bm25(passages_fts) FROM passages_fts f JOIN passages p ON p.number = f.rowid "
            "JOIN documents d ON d.document_id = p.document_id "
            "WHERE passages_fts MATCH :match AND d.tenant = :tenant AND d.collection = :collection "
            "AND d.status = 'ready' "
            "ORDER BY bm25(passages_fts), f.rowid LIMIT :limit"
        ),
        {"match": match, "tenant": tenant, "collection": collection, "limit": limit},
    )
    return {row[0]: row[1] for row in rows}


def add(connection: Connection, numbers: Sequence[int], passages: Sequence[Sequence[str]]) -> None:
    """Index the words of passages."""
    rows = [{"number": n, "words": " ".join(words)} for n, words in zip(numbers, passages, strict=True)]
    connection.execute(text("INSERT INTO passages_fts (rowid, words) VALUES (:number, :words)"), rows)


def remove(connection: Connection, document_id: str) -> None:
    """Forget a document's passages; before their rows are deleted."""
    connection.execute(
        text("DELETE FROM passages_fts WHERE rowid IN (SELECT number FROM passages WHERE document_id = :id)"),
        {"id": document_id},
    )
