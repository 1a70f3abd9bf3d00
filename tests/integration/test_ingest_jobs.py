"""The queue: states, errors, deletion in the middle, stopping, another embedder, a failing database."""

import io
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from retriever import (
    Document,
    DocumentNotFoundError,
    Embedder,
    InvalidDocumentError,
    Retriever,
    StoreError,
    UnsupportedTypeError,
    open_database,
    store,
)
from retriever import ingest as ingest_module
from retriever.extract import apart

Ingest = Callable[..., Document]
LONG = "\n\n".join(f"Paragraph {i} about valves and pumps. " + "More words follow here. " * 30 for i in range(40))


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def rows(engine: Engine, table: str) -> int:
    if table == "passages_fts" and engine.dialect.name == "postgresql":
        table = "passage_lengths"
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_a_document_becomes_ready(ingest: Ingest, retriever: Retriever) -> None:
    document = ingest("../../plans/caf\u0065\u0301 \u202e🚀.md", "# Title\n\nThe pump runs.")
    assert document.filename == "café 🚀.md"
    assert (document.status, document.title, document.progress, document.error) == ("ready", "Title", 1.0, None)
    assert (document.pages, document.passages, document.warnings) == (1, 1, [])
    assert retriever.documents("t") == [document]


def test_what_can_be_known_at_upload_is_refused_and_leaves_nothing(retriever: Retriever, tmp_path: Path) -> None:
    with pytest.raises(InvalidDocumentError):
        retriever.add("t", "default", "a.txt", io.BytesIO(b""))
    with pytest.raises(UnsupportedTypeError):
        retriever.add("t", "default", "a.pdf", io.BytesIO(b"\x89PNG"))

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise ConnectionError
            return super().read(size)

    with pytest.raises(ConnectionError):
        retriever.add("t", "default", "a.txt", Broken(b"x" * 9000))
    assert retriever.documents("t") == []
    assert list((tmp_path / "uploads").iterdir()) == []


def test_a_file_that_cannot_be_used_fails_with_its_reason_and_the_queue_goes_on(ingest: Ingest) -> None:
    assert "damaged" in (ingest("a.pdf", b"%PDF-1.7\nnothing").error or "")
    assert "damaged" in (ingest("a.docx", b"PK\x03\x04nothing").error or "")
    failed = ingest("a.html", "<script>only code</script>")
    assert (failed.status, failed.passages) == ("failed", 0)
    assert failed.error
    assert ingest("b.txt", "The pump runs.").status == "ready"


def test_a_file_that_takes_too_much_memory_fails_alone(ingest: Ingest, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(apart, "MEMORY_BYTES", 2**20)  # less than it has when it starts
        assert "more memory" in (ingest("a.txt", "text " * 10**6).error or "")
    assert ingest("b.txt", "The pump runs.").status == "ready"


def test_deleting_while_it_is_read_ends_the_reader(
    retriever: Retriever, ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "".join(f"<table><tr><td>{i}</td></tr></table>" for i in range(100_000))  # seconds for its reader
    document = retriever.add("t", "default", "a.html", io.BytesIO(slow.encode()))
    wait_for(lambda: bool(readers()))
    time.sleep(2 * apart.POLL_S)
    [reader] = readers()
    retriever.delete("t", document.document_id)
    wait_for(lambda: not reader.is_running())
    assert ingest("b.txt", "The pump runs.").status == "ready"


def readers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "retriever.extract.worker" in child.cmdline()]


def test_deleting_leaves_nothing_of_a_document(
    ingest: Ingest, retriever: Retriever, database: Engine, tmp_path: Path
) -> None:
    document = ingest("a.txt", LONG)
    assert rows(database, "passages") == rows(database, "passages_fts") == document.passages
    with pytest.raises(DocumentNotFoundError):
        retriever.delete("other", document.document_id)
    retriever.delete("t", document.document_id)
    assert rows(database, "documents") == rows(database, "passages") == rows(database, "passages_fts") == 0
    assert list((tmp_path / "uploads").iterdir()) == []
    for call in (retriever.document, retriever.delete):
        with pytest.raises(DocumentNotFoundError):
            call("t", document.document_id)


def test_deleting_while_it_is_embedded_stops_the_work(
    retriever: Retriever, ingest: Ingest, database: Engine, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest("warm.txt", "The pump runs.")
    retriever.search("t", "default", "pump", 1)  # the index is in memory from here on
    batches, embed = [], embedder.embed
    begun, deleted = threading.Event(), threading.Event()

    def watched(texts: list[str]) -> object:
        batches.append(len(texts))
        begun.set()
        assert deleted.wait(60)
        return embed(texts)

    with monkeypatch.context() as patch:
        patch.setattr(embedder, "embed", watched)
        document = retriever.add("t", "default", "a.txt", io.BytesIO(LONG.encode()))
        assert begun.wait(60)
        retriever.delete("t", document.document_id)
        deleted.set()
        ingest("after.txt", "The valve is open.")
    assert len(batches) == 2  # one of the deleted document, one of the next
    assert rows(database, "passages") == rows(database, "passages_fts") == 2


def test_a_stopped_document_is_taken_up_again(database: Engine, embedder: Embedder, tmp_path: Path) -> None:
    first = Retriever(database, embedder, tmp_path)
    first.start()
    document_id = first.add("t", "default", "a.txt", io.BytesIO(LONG.encode())).document_id
    wait_for(lambda: first.document("t", document_id).progress > 0)
    first.stop()
    assert first.document("t", document_id).status in ("queued", "ready")
    second = Retriever(database, embedder, tmp_path)
    second.start()
    wait_for(lambda: second.document("t", document_id).status == "ready")
    second.stop()
    assert second.document("t", document_id).passages == rows(database, "passages")


def test_another_embedder_makes_the_vectors_anew(
    ingest: Ingest, retriever: Retriever, database: Engine, embedder: Embedder, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    document = ingest("a.txt", "The feed pump runs at 12 bar.")
    monkeypatch.setattr(embedder, "name", "another:384")
    other = Retriever(database, embedder, tmp_path)
    assert other.document("t", document.document_id).status == "ready"
    other.start()
    wait_for(lambda: other.document("t", document.document_id).status == "ready")
    assert [hit.passage.text for hit in other.search("t", "default", "feed pump", 1)] == [
        "The feed pump runs at 12 bar."
    ]
    other.stop()
    assert rows(database, "passages") == rows(database, "passages_fts") == 1


def test_an_upload_that_is_gone_says_so(database: Engine, embedder: Embedder, tmp_path: Path) -> None:
    retriever = Retriever(database, embedder, tmp_path)
    document_id = retriever.add("t", "default", "a.txt", io.BytesIO(b"The pump runs.")).document_id
    (tmp_path / "uploads" / document_id).unlink()
    retriever.start()
    wait_for(lambda: retriever.document("t", document_id).status == "failed")
    retriever.stop()
    assert "Upload it again" in (retriever.document("t", document_id).error or "")


def test_a_failing_database_is_tried_again(ingest: Ingest, monkeypatch: pytest.MonkeyPatch) -> None:
    failures, publish = [], store.publish

    def failing(*arguments: object) -> object:
        if not failures:
            failures.append(1)
            raise OperationalError("", {}, Exception("database or disk is full"))
        return publish(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ingest_module, "RETRY_S", 0.01)
    monkeypatch.setattr(store, "publish", failing)
    assert ingest("a.txt", "The pump runs.").status == "ready"
    assert failures


def test_searching_and_deleting_while_documents_come_in(retriever: Retriever, ingest: Ingest, database: Engine) -> None:
    errors: list[BaseException] = []
    stop = threading.Event()

    def search() -> None:
        try:
            while not stop.is_set():
                for hit in retriever.search("t", "default", "How are the valves and pumps used?", 5):
                    assert "valves and pumps" in hit.passage.text or "More words" in hit.passage.text
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for round_ in range(6):
        document = ingest(f"{round_}.txt", LONG[: 3000 + round_])
        if round_ % 2:
            retriever.delete("t", document.document_id)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    kept = sum(document.passages for document in retriever.documents("t"))
    assert rows(database, "passages") == rows(database, "passages_fts") == kept


def test_a_store_of_another_version_or_kind_is_refused(database: Engine, embedder: Embedder, tmp_path: Path) -> None:
    Retriever(database, embedder, tmp_path)
    with database.begin() as connection:
        connection.execute(text("UPDATE retriever_version SET version = 99"))
    with pytest.raises(StoreError, match="version 99"):
        Retriever(database, embedder, tmp_path)
    with pytest.raises(StoreError, match="SQLite"):
        open_database("mysql://127.0.0.1/snaprag")


def test_a_store_of_the_first_version_is_brought_up_to_date(
    ingest: Ingest, database: Engine, embedder: Embedder, tmp_path: Path
) -> None:
    ingest("a.md", "# Pumps\n\nThe feed pump runs at 12 bar.")
    with database.begin() as connection:
        connection.execute(text("ALTER TABLE passages DROP COLUMN section"))
        connection.execute(text("UPDATE retriever_version SET version = 1"))
    upgraded = Retriever(database, embedder, tmp_path)
    assert [hit.passage.title for hit in upgraded.search("t", "default", "feed pump", 1)] == ["Pumps"]
    with database.connect() as connection:
        assert connection.execute(text("SELECT version FROM retriever_version")).scalars().all() == [2]


def test_headings_are_part_of_the_title(ingest: Ingest, retriever: Retriever) -> None:
    ingest("a.md", "# Plant\n\n## Pumps\n\nThe feed pump runs at 12 bar.")
    ingest("b.html", "<h1>Plant</h1><h2>Valves</h2><p>The relief valve opens by hand.</p>")
    titles = [retriever.search("t", "default", query, 1)[0].passage.title for query in ("feed pump", "relief valve")]
    assert titles == ["Plant › Pumps", "b.html › Plant › Valves"]
