"""Documents from queued to ready, one after another, in a thread of its own.

Nothing is half done: all that a document becomes is written in one transaction, so a kill at any moment leaves it
queued or processing (then it is queued again at the next start) or ready.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from retriever import store
from retriever.chunk import PASSAGE_TOKENS, Span, chunk
from retriever.embed import BATCH, Embedder
from retriever.errors import InvalidDocumentError, RetrieverError
from retriever.extract.apart import ApartReader
from retriever.model import Extracted

log = structlog.get_logger()

READ_SHARE = 0.3  # of a document's progress; the rest is embedding
RETRY_S = 2.0  # after the database failed: locked for long, or the disk is full

# document id, what it holds, its passages, their vectors -> False when the document has been deleted
Publish = Callable[[str, Extracted, Sequence[Span], NDArray[np.float32]], bool]


class _Stopped(Exception):
    """The thread was told to stop in the middle of a document."""


class _Deleted(Exception):
    """The document was deleted in the middle of its ingest."""


class Ingest:
    """The ingest thread. It calls `publish` with all that makes a document ready."""

    def __init__(self, engine: Engine, embedder: Embedder, uploads: Path, publish: Publish, shared: bool) -> None:
        self._engine = engine
        self._embedder = embedder
        self._uploads = uploads
        self._publish = publish
        self._shared = shared
        self._reader = ApartReader()
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
        self._reader.close()

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                worked = self._next()
            except SQLAlchemyError:
                log.exception("ingest_database_failed")
                self._stopping.wait(RETRY_S)
            else:
                if not worked and not self._stopping.is_set():
                    self._wake.wait()

    def _next(self) -> bool:
        """Take up the next document; False when there is none."""
        with self._engine.connect() as connection:
            undone = store.undone(connection)
        queued = next((found for found in undone if self._is_here(found[0])), None)
        if queued is not None:
            self._process(*queued)
        return queued is not None

    def _is_here(self, document_id: str) -> bool:
        """Another service that shares the database ingests what was uploaded there."""
        return not self._shared or (self._uploads / document_id).exists()

    def _process(self, document_id: str, filename: str) -> None:
        try:
            self._report(document_id, status="processing")
            self._ingest(document_id, filename)
        except _Stopped:
            self._update(document_id, status="queued", progress=0.0)
        except _Deleted:
            log.info("ingest_deleted", document_id=document_id)
        except RetrieverError as error:
            self._update(document_id, status="failed", error=str(error))
        except SQLAlchemyError:  # says nothing about the document, which stays undone
            raise
        except Exception:  # a file that breaks its reader must not end the thread; the log says how
            log.exception("ingest_failed", document_id=document_id)
            reason = "The document could not be read; it may be damaged. The service's log says more."
            self._update(document_id, status="failed", error=reason)

    def _ingest(self, document_id: str, filename: str) -> None:
        path = self._uploads / document_id
        if not path.exists():
            self._report(document_id, progress=0.0)
            raise InvalidDocumentError("The uploaded file is gone. Upload it again.")
        extracted = self._reader.read(path, filename, lambda done: self._progress(document_id, done * READ_SHARE))
        spans = chunk(extracted, self._embedder.count_tokens, min(PASSAGE_TOKENS, self._embedder.max_tokens))
        if not spans:
            raise InvalidDocumentError("The document holds no text.")
        vectors = self._embed(document_id, [extracted.text[span.start : span.end] for span in spans])
        if not self._publish(document_id, extracted, spans, vectors):
            raise _Deleted
        log.info("ingested", document_id=document_id, pages=len(extracted.pages), passages=len(spans))

    def _embed(self, document_id: str, texts: list[str]) -> NDArray[np.float32]:
        vectors = np.empty((len(texts), self._embedder.dimension), dtype=np.float32)
        for start in range(0, len(texts), BATCH):
            vectors[start : start + BATCH] = self._embedder.embed(texts[start : start + BATCH])
            done = min(start + BATCH, len(texts)) / len(texts)
            self._progress(document_id, READ_SHARE + done * (1 - READ_SHARE))
        return vectors

    def _progress(self, document_id: str, done: float) -> None:
        """Tell how far it is; raises what ends the work on a document."""
        if self._stopping.is_set():
            raise _Stopped
        self._report(document_id, progress=min(round(done, 2), 0.99))

    def _report(self, document_id: str, **values: object) -> None:
        """Set columns of a document at work; raises _Deleted when it is gone."""
        if not self._update(document_id, **values):
            raise _Deleted

    def _update(self, document_id: str, **values: object) -> bool:
        with self._engine.begin() as connection:
            return store.update(connection, document_id, **values)
