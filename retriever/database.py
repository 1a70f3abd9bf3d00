"""The database: opening it, and the retriever's tables. Vectors live here; the index in memory is made from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Engine,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    create_engine,
    event,
    func,
    select,
)
from sqlalchemy.engine import make_url

from retriever import lexical
from retriever.errors import StoreError

SCHEMA_VERSION = 2

metadata = MetaData()


class PlainText(TypeDecorator[str]):
    """Text without NUL characters, which PostgreSQL cannot hold; each becomes U+FFFD, so that offsets stay."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value if value is None else value.replace("\0", "\ufffd")


documents = Table(
    "documents",
    metadata,
    Column("document_id", PlainText, primary_key=True),
    Column("tenant", PlainText, nullable=False, index=True),
    Column("collection", PlainText, nullable=False),
    Column("filename", PlainText, nullable=False),
    Column("title", PlainText, nullable=False),
    Column("status", PlainText, nullable=False, index=True),
    Column("error", PlainText),
    Column("progress", Float, nullable=False, default=0.0),
    Column("pages", Integer, nullable=False, default=0),
    Column("passages", Integer, nullable=False, default=0),
    Column("warnings", PlainText, nullable=False, default="[]"),
    Column("text", PlainText),
    Column("embedder", PlainText),
    Column("created_at", PlainText, nullable=False),
)
passages = Table(
    "passages",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("document_id", ForeignKey("documents.document_id", ondelete="CASCADE"), nullable=False, index=True),
    Column("ordinal", Integer, nullable=False),
    Column("page", Integer, nullable=False),
    Column("start", Integer, nullable=False),
    Column("end", Integer, nullable=False),
    Column("section", PlainText, nullable=False, server_default=""),
    Column("text", PlainText, nullable=False),  # again, so that reading a passage does not mean reading its document
    Column("vector", LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # a number is never given twice: an index may still know the old one
)
# what turns a store of a version into one of the next
_UPGRADES = {1: "ALTER TABLE passages ADD COLUMN section TEXT NOT NULL DEFAULT ''"}
versions = Table("retriever_version", metadata, Column("version", Integer, nullable=False))

# how often a collection changed: each process compares it with what its index in memory knows
changes = Table(
    "collection_changes",
    metadata,
    Column("tenant", PlainText, primary_key=True),
    Column("collection", PlainText, primary_key=True),
    Column("count", BigInteger, nullable=False),
)

_TABLES_LOCK = 0x736E6170  # any number, the same for all processes


def open_database(url: str) -> Engine:
    """An engine for `url`: PostgreSQL, or SQLite with a write-ahead log, foreign keys and a patient lock; its folder is
    made. StoreError for another database.
    """
    parsed = make_url(url)
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        if parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(parsed)
        event.listen(engine, "connect", _pragmas)
        return engine
    if parsed.drivername != "postgresql+psycopg":
        raise StoreError(
            "The database has to be SQLite (sqlite:///PATH) or PostgreSQL "
            f"(postgresql+psycopg://USER@HOST/NAME), and not {parsed.drivername}."
        )
    # a server that was restarted closed the connections that wait in the pool
    return create_engine(parsed, pool_pre_ping=True, connect_args={"connect_timeout": 10})


@contextmanager
def alone(engine: Engine) -> Iterator[Connection]:
    """A transaction in which no other process makes tables."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(select(func.pg_advisory_xact_lock(_TABLES_LOCK)))
        yield connection


def create_tables(engine: Engine) -> None:
    """Make what is missing, and bring an older store up to date. StoreError when another version wrote the store."""
    with alone(engine) as connection:
        versions.create(connection, checkfirst=True)
        found = connection.execute(versions.select()).scalar()
        while found in _UPGRADES:
            connection.exec_driver_sql(_UPGRADES[found])
            found += 1
            connection.execute(versions.update().values(version=found))
        if found not in (None, SCHEMA_VERSION):
            raise StoreError(
                f"The store has schema version {found}, and this version of snaprag knows {SCHEMA_VERSION}. "
                "Use the version that wrote it, or another data directory."
            )
        metadata.create_all(connection)
        lexical.create(connection)
        if found is None:
            connection.execute(versions.insert().values(version=SCHEMA_VERSION))


def _pragmas(connection: object, _: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
