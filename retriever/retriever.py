"""The retriever: documents in, passages out. Every call names its tenant, and sees nothing of any other."""

import os
import shutil
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine

from retriever import store
from retriever.chunk import Span
from retriever.database import create_tables
from retriever.embed import Embedder
from retriever.extract import SNIFF_BYTES, check_type
from retriever.extract.clean import clean_filename
from retriever.index import VectorIndex
from retriever.ingest import Ingest
from retriever.model import Document, Extracted, Hit, Passage
from retriever.search import candidates, supported


class Retriever:
    """`start` and `stop` in pairs; all other methods from any thread. `shared` says that other processes use the
    database or the data directory: each then ingests what was uploaded to it, and leaves the files of others."""

    def __init__(self, engine: Engine, embedder: Embedder, data_dir: Path, *, shared: bool = False) -> None:
        self._engine = engine
        self._embedder = embedder
        self._uploads = data_dir / "uploads"
        self._uploads.mkdir(parents=True, exist_ok=True)
        self._indexes: dict[tuple[str, str], VectorIndex] = {}
        self._lock = threading.Lock()
        self._shared = shared
        create_tables(engine)
        self._ingest = Ingest(engine, embedder, self._uploads, self._publish, shared)

    def start(self) -> None:
        """Remove uploads that no document knows, and take up the queue. Call it before anything is added."""
        if not self._shared:
            with self._engine.connect() as connection:
                known = store.all_ids(connection)
            for path in self._uploads.iterdir():
                if path.name not in known:
                    path.unlink()
        self._ingest.start()

    def stop(self) -> None:
        """Stop the ingest thread."""
        self._ingest.stop()

    def add(self, tenant: str, collection: str, filename: str, stream: BinaryIO) -> Document:
        """Store an upload and queue it. UnsupportedTypeError or InvalidDocumentError for what can never be read."""
        shown = clean_filename(filename)
        head = stream.read(SNIFF_BYTES)
        check_type(shown, head)
        document_id = f"doc_{uuid.uuid4().hex}"
        self._store_upload(document_id, head, stream)
        with self._engine.begin() as connection:
            store.insert(connection, document_id, tenant, collection, shown)
        self._ingest.wake()
        return self.document(tenant, document_id)

    def documents(self, tenant: str, collection: str | None = None) -> list[Document]:
        """The tenant's documents, newest first."""
        with self._engine.connect() as connection:
            return store.listing(connection, tenant, collection)

    def document(self, tenant: str, document_id: str) -> Document:
        """One document. DocumentNotFoundError."""
        with self._engine.connect() as connection:
            return store.get(connection, tenant, document_id)

    def delete(self, tenant: str, document_id: str) -> None:
        """Delete a document, its passages, words, vectors and upload. DocumentNotFoundError."""
        with self._engine.begin() as connection:
            store.get(connection, tenant, document_id)
            store.delete(connection, document_id)
        (self._uploads / document_id).unlink(missing_ok=True)

    def passages(self, tenant: str, passage_ids: Sequence[str]) -> list[Passage]:
        """Passages by id; those whose document is gone are left out."""
        with self._engine.connect() as connection:
            return store.passages_by_id(connection, tenant, passage_ids)

    def search(self, tenant: str, collection: str, query: str, top_k: int) -> list[Hit]:
        """The best passages for `query`, best first; [] when nothing in the collection is about it."""
        return supported(self.candidates(tenant, collection, query))[:top_k]

    def candidates(self, tenant: str, collection: str, query: str) -> list[Hit]:
        """Everything that words or vectors find for `query`, best first, whether it is about it or not."""
        vector = self._embedder.embed([query])[0]
        index = self._index(tenant, collection)
        with self._engine.connect() as connection:
            return candidates(connection, index, tenant, collection, query, vector)

    def _index(self, tenant: str, collection: str) -> VectorIndex:
        """The collection's index, as the database has it now: this process or another one may have changed it."""
        with self._lock, self._engine.connect() as connection:
            index = self._indexes.setdefault((tenant, collection), VectorIndex(self._embedder.dimension))
            changes = store.changes_of(connection, tenant, collection)
            if index.changes != changes:
                wanted = store.indexed_numbers(connection, tenant, collection, self._embedder.name)
                known = index.numbers()
                index.remove(sorted(known - wanted))
                vectors = store.vectors_of(connection, sorted(wanted - known))
                if vectors:
                    joined = np.frombuffer(b"".join(vectors.values()), np.float32)
                    index.add(list(vectors), joined.reshape(len(vectors), -1))
                index.changes = changes
            return index

    def _publish(
        self, document_id: str, extracted: Extracted, spans: Sequence[Span], vectors: NDArray[np.float32]
    ) -> bool:
        """Make a document ready; False when it has been deleted. The index learns of it at the next search."""
        with self._engine.begin() as connection:
            return store.publish(connection, document_id, extracted, spans, vectors, self._embedder.name)

    def _store_upload(self, document_id: str, head: bytes, stream: BinaryIO) -> None:
        """On disk, flushed, under its final name, before the row that knows it."""
        path = self._uploads / document_id
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                file.write(head)
                shutil.copyfileobj(stream, file, 2**20)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
            _flush_folder(self._uploads)
        finally:
            partial.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Make a rename outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
