"""The lexical leg: SQLite's FTS5. Scripts without blanks between words are indexed as pairs of characters."""

import re
from collections.abc import Sequence

from sqlalchemy import Connection, text

_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+")
_WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(
    "a about also am an and any are as at be been but by can could did do does for from had has have he her his "
    "how i if in into is it its just may me my no not of on or our please she should so some such tell than that "
    "the their them then there these they this those to us was we were what when where which while who whose why "
    "will with would yes you your".split()
)


def index_words(passage: str) -> str:
    """What FTS5 is given for a passage: runs of CJK and Thai as overlapping pairs, everything else as it is."""
    return _CJK.sub(lambda run: f" {' '.join(_pairs(run.group()))} ", passage)


def content_words(query: str) -> list[str]:
    """The words of a query that say what it is about, in order, each once."""
    words = _WORD.findall(index_words(query.casefold()))
    return list(dict.fromkeys(word for word in words if word not in STOP_WORDS))


def search(connection: Connection, tenant: str, collection: str, query: str, limit: int) -> list[int]:
    """Numbers of the passages that hold words of the query, best first by BM25."""
    words = content_words(query)
    if not words:
        return []
    match = " OR ".join('"' + word.replace('"', '""') + '"' for word in words)
    rows = connection.execute(
        text(
            "SELECT f.rowid FROM passages_fts f JOIN passages p ON p.number = f.rowid "
            "JOIN documents d ON d.document_id = p.document_id "
            "WHERE passages_fts MATCH :match AND d.tenant = :tenant AND d.collection = :collection "
            "AND d.status = 'ready' "
            "ORDER BY bm25(passages_fts), f.rowid LIMIT :limit"
        ),
        {"match": match, "tenant": tenant, "collection": collection, "limit": limit},
    )
    return [row[0] for row in rows]


def add(connection: Connection, numbers: Sequence[int], texts: Sequence[str]) -> None:
    """Index passages."""
    rows = [{"number": number, "words": index_words(words)} for number, words in zip(numbers, texts, strict=True)]
    connection.execute(text("INSERT INTO passages_fts (rowid, words) VALUES (:number, :words)"), rows)


def remove(connection: Connection, document_id: str) -> None:
    """Forget a document's passages; before their rows are deleted."""
    connection.execute(
        text("DELETE FROM passages_fts WHERE rowid IN (SELECT number FROM passages WHERE document_id = :id)"),
        {"id": document_id},
    )


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(max(len(run) - 1, 1))]
