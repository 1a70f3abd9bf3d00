"""The tables of sessions and turns. Times are seconds since 1970, UTC."""

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Engine,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    insert,
    select,
)

from retriever.database import PlainText, alone
from retriever.errors import StoreError

SCHEMA_VERSION = 1

metadata = MetaData()

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", PlainText, primary_key=True),
    Column("tenant", PlainText, nullable=False),
    Column("collection", PlainText, nullable=False),
    Column("title", PlainText, nullable=False),
    Column("turns", Integer, nullable=False),
    # the next turn that adds tokens has no sequence to continue
    Column("starts_over", Boolean, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("lease_owner", PlainText),
    Column("lease_until", Float, nullable=False),
    Index("sessions_by_tenant", "tenant", "updated_at"),
)

turns = Table(
    "turns",
    metadata,
    Column("session_id", PlainText, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("answer_id", PlainText, nullable=False),
    Column("message", PlainText, nullable=False),
    Column("answer", PlainText, nullable=False),
    Column("answerable", Boolean, nullable=False),
    Column("finish_reason", PlainText, nullable=False),
    Column("citations", JSON, nullable=False),
    Column("passages", JSON, nullable=False),
    Column("usage", JSON, nullable=False),
    Column("timings", JSON, nullable=False),
    Column("model", PlainText, nullable=False),
    Column("compression", JSON, nullable=False),
    Column("notices", JSON, nullable=False),
    # uint32, little endian
    Column("token_ids", LargeBinary, nullable=False),
    Column("starts_over", Boolean, nullable=False),
    Column("created_at", Float, nullable=False),
)

# which turns hold text of which document, so that a deleted document is found without reading transcripts
session_documents = Table(
    "session_documents",
    metadata,
    Column("tenant", PlainText, primary_key=True),
    Column("document_id", PlainText, primary_key=True),
    Column("session_id", PlainText, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Index("session_documents_by_session", "session_id"),
)

# a turn that was already running when its document was deleted must not bring it back
forgotten_documents = Table(
    "forgotten_documents",
    metadata,
    Column("tenant", PlainText, primary_key=True),
    Column("document_id", PlainText, primary_key=True),
)

versions = Table("sessions_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False))


def create_tables(engine: Engine) -> None:
    """Make what is missing. Raises StoreError when another version wrote the tables."""
    with alone(engine) as connection:
        metadata.create_all(connection)
        found = connection.execute(select(versions.c.version)).scalar()
        if found is None:
            connection.execute(insert(versions).values(version=SCHEMA_VERSION))
        elif found != SCHEMA_VERSION:
            raise StoreError(
                f"The sessions in the database are of version {found}, this service writes version {SCHEMA_VERSION}. "
                "Use the service that wrote them, or another data directory."
            )
