"""Documents from queued to ready, one after another, in a thread of its own.

Nothing is half done: all that a document becomes is written in one transaction, so a kill at any moment leaves it
queued or processing (then it is queued again at the next start) or ready.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray
from sqlalchemy import Engine

from retriever import store
from retriever.chunk import PASSAGE_TOKENS, chunk
from retriever.embed import BATCH, Embedder
from retriever.errors import InvalidDocumentError, RetrieverError
from retriever.extract import extract

log = structlog.get_logger()

# tenant, collection, numbers of the new passages, their vectors
Publish = Callable[[str, str, list[int], NDArray[np.float32]], None]


class _Stopped(Exception):
    """The thread was told to stop in the middle of a document."""


class Ingest:
    """The ingest thread. `published` is called for every document that became ready."""

    def __init__(self, engine: Engine, embedder: Embedder, uploads: Path, published: Publish) -> None:
        self._engine = engine
        self._embedder = embedder
        self._uploads = uploads
        self._published = published
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)

    def start(self) -> None:
        """Queue again what was interrupted, and begin."""
        with self._engine.begin() as connection:
            store.requeue_interrupted(connection, self._embedder.name)
        self._thread.start()
        self.wake()

    def stop(self) -> None:
        """Stop at the next batch; the document is taken up again at the next start."""
        self._stopping.set()
        self.wake()
        self._thread.join()

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            with self._engine.connect() as connection:
                queued = store.next_queued(connection)
            if queued is None:
                self._wake.wait()
            else:
                self._process(*queued)

    def _process(self, document_id: str, tenant: str, collection: str, filename: str) -> None:
        self._update(document_id, status="processing")
        try:
            self._ingest(document_id, tenant, collection, filename)
        except _Stopped:
            self._update(document_id, status="queued", progress=0.0)
        except RetrieverError as error:
            self._update(document_id, status="failed", error=str(error))
        except Exception:  # a file that breaks its reader must not end the thread; the log says how
            log.exception("ingest_failed", document_id=document_id)
            self._update(document_id, status="failed", error="The document could not be read; it may be damaged.")

    def _ingest(self, document_id: str, tenant: str, collection: str, filename: str) -> None:
        extracted = extract(self._uploads / document_id, filename)
        spans = chunk(extracted, self._embedder.count_tokens, min(PASSAGE_TOKENS, self._embedder.max_tokens))
        if not spans:
            raise InvalidDocumentError("The document holds no text.")
        texts = [extracted.text[span.start : span.end] for span in spans]
        vectors = self._embed(document_id, texts)
        with self._engine.begin() as connection:
            numbers = store.publish(connection, document_id, extracted, spans, vectors, self._embedder.name)
        if numbers is not None:
            self._published(tenant, collection, numbers, vectors)
            log.info("ingested", document_id=document_id, pages=len(extracted.pages), passages=len(spans))

    def _embed(self, document_id: str, texts: list[str]) -> NDArray[np.float32]:
        vectors = np.empty((len(texts), self._embedder.dimension), dtype=np.float32)
        for start in range(0, len(texts), BATCH):
            if self._stopping.is_set():
                raise _Stopped
            vectors[start : start + BATCH] = self._embedder.embed(texts[start : start + BATCH])
            self._update(document_id, progress=round(min(start + BATCH, len(texts)) / len(texts) * 0.99, 2))
        return vectors

    def _update(self, document_id: str, **values: object) -> None:
        with self._engine.begin() as connection:
            store.update(connection, document_id, **values)
