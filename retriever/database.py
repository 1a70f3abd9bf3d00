"""The database: opening it, and the retriever's tables. Vectors live here; the index in memory is made from them."""

from pathlib import Path

from sqlalchemy import (
    Column,
    Engine,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    text,
)
from sqlalchemy.engine import make_url

from retriever.errors import StoreError

SCHEMA_VERSION = 1

metadata = MetaData()

documents = Table(
    "documents",
    metadata,
    Column("document_id", String, primary_key=True),
    Column("tenant", String, nullable=False, index=True),
    Column("collection", String, nullable=False),
    Column("filename", String, nullable=False),
    Column("title", String, nullable=False),
    Column("status", String, nullable=False, index=True),
    Column("error", Text),
    Column("progress", Float, nullable=False, default=0.0),
    Column("pages", Integer, nullable=False, default=0),
    Column("passages", Integer, nullable=False, default=0),
    Column("warnings", Text, nullable=False, default="[]"),
    Column("text", Text),
    Column("embedder", String),
    Column("created_at", String, nullable=False),
)
passages = Table(
    "passages",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("document_id", ForeignKey("documents.document_id", ondelete="CASCADE"), nullable=False, index=True),
    Column("ordinal", Integer, nullable=False),
    Column("page", Integer, nullable=False),
    Column("start", Integer, nullable=False),
    Column("end", Integer, nullable=False),
    Column("text", Text, nullable=False),  # again, so that reading a passage does not mean reading its document
    Column("vector", LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # a number is never given twice: an index may still know the old one
)
versions = Table("retriever_version", metadata, Column("version", Integer, nullable=False))

# the words are made by retriever.lexical: here they are only to be kept whole
_FTS = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS passages_fts USING "
    "fts5(words, tokenize = \"unicode61 remove_diacritics 0 categories 'L* N* M* Co'\")"
)


def open_database(url: str) -> Engine:
    """An engine for `url`: SQLite with a write-ahead log, foreign keys and a patient lock; its folder is made.

    StoreError for another database: the word index is SQLite's.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        raise StoreError(f"The database has to be SQLite (sqlite:///PATH), and not {parsed.get_backend_name()}.")
    if parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed)
    event.listen(engine, "connect", _pragmas)
    return engine


def create_tables(engine: Engine) -> None:
    """Make what is missing. StoreError when another version wrote the store."""
    versions.create(engine, checkfirst=True)
    with engine.begin() as connection:
        found = connection.execute(versions.select()).scalar()
        if found not in (None, SCHEMA_VERSION):
            raise StoreError(
                f"The store has schema version {found}, and this version of snaprag knows {SCHEMA_VERSION}. "
                "Use the version that wrote it, or another data directory."
            )
        metadata.create_all(connection)
        connection.execute(text(_FTS))
        if found is None:
            connection.execute(versions.insert().values(version=SCHEMA_VERSION))


def _pragmas(connection: object, _: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
