"""The word index on PostgreSQL: words counted in a table, ranked by the formula of SQLite's `bm25()`.

PostgreSQL's own ranks know neither how rare a word is nor how long a passage is.
"""

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Connection, text

_TABLES = (
    "CREATE TABLE IF NOT EXISTS passage_lengths (number BIGINT PRIMARY KEY REFERENCES passages ON DELETE CASCADE, "
    "words INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS passage_words (word TEXT, number BIGINT REFERENCES passages ON DELETE CASCADE, "
    "count INTEGER NOT NULL, PRIMARY KEY (word, number))",
    "CREATE INDEX IF NOT EXISTS passage_words_by_number ON passage_words (number)",
)

# k1 = 1.2, b = 0.75, and the weight of a word that most passages hold, as in SQLite
_SEARCH = """
WITH corpus AS (SELECT count(*)::float8 AS passages, avg(words)::float8 AS mean FROM passage_lengths),
rare AS (
    SELECT w.word, greatest(ln((c.passages - count(*) + 0.5) / (count(*) + 0.5)), 1e-6) AS weight
    FROM passage_words w CROSS JOIN corpus c WHERE w.word = ANY(:words) GROUP BY w.word, c.passages
)
SELECT w.number, sum(rare.weight * w.count * 2.2 / (w.count + 1.2 * (0.25 + 0.75 * l.words / c.mean))) AS score
FROM rare JOIN passage_words w ON w.word = rare.word
JOIN passage_lengths l ON l.number = w.number
CROSS JOIN corpus c
JOIN passages p ON p.number = w.number
JOIN documents d ON d.document_id = p.document_id
WHERE d.tenant = :tenant AND d.collection = :collection AND d.status = 'ready'
GROUP BY w.number
ORDER BY score DESC, w.number
LIMIT :limit
"""


def create(connection: Connection) -> None:
    """Make what is missing."""
    for table in _TABLES:
        connection.execute(text(table))


def search(connection: Connection, tenant: str, collection: str, words: Sequence[str], limit: int) -> dict[int, float]:
    """BM25 of the passages that hold some of the words, by number, best first."""
    values = {"words": list(words), "tenant": tenant, "collection": collection, "limit": limit}
    return {row[0]: row[1] for row in connection.execute(text(_SEARCH), values)}


def add(connection: Connection, numbers: Sequence[int], passages: Sequence[Sequence[str]]) -> None:
    """Index the words of passages."""
    indexed = list(zip(numbers, passages, strict=True))
    lengths = [{"number": number, "words": len(words)} for number, words in indexed]
    connection.execute(text("INSERT INTO passage_lengths (number, words) VALUES (:number, :words)"), lengths)
    counts = [
        {"number": number, "word": word, "count": count}
        for number, words in indexed
        for word, count in Counter(words).items()
    ]
    if counts:
        insert = "INSERT INTO passage_words (word, number, count) VALUES (:word, :number, :count)"
        connection.execute(text(insert), counts)


def remove(connection: Connection, document_id: str) -> None:
    """Forget a document's passages."""
    for table in ("passage_words", "passage_lengths"):
        statement = f"DELETE FROM {table} WHERE number IN (SELECT number FROM passages WHERE document_id = :id)"
        connection.execute(text(statement), {"id": document_id})
