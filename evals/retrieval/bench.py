"""A retriever with the texts of a set in it, and the ways to search it side by side."""

import io
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from sqlalchemy import Engine

from app.engine.loading import resolve_embedder
from app.settings import Settings
from evals.retrieval.sets import Question
from retriever import Embedder, Passage, Retriever, content_words, lexical, open_database, store

TENANT = "eval"
LIMIT = 50  # passages asked for: enough for 10 documents, and for 2,000 tokens

Leg = Callable[[str], Sequence[Passage]]


@dataclass(frozen=True)
class Bench:
    """What an evaluation searches with."""

    engine: Engine
    retriever: Retriever
    embedder: Embedder

    def ingest(self, collection: str, texts: dict[str, str]) -> tuple[float, int]:
        """Seconds, and passages made of the texts, by file name."""
        started = time.monotonic()
        for filename, text in texts.items():
            self.retriever.add(TENANT, collection, filename, io.BytesIO(text.encode()))
        while any(document.progress < 1 for document in self.retriever.documents(TENANT, collection)):
            time.sleep(0.5)
        documents = self.retriever.documents(TENANT, collection)
        if failed := [document.filename for document in documents if document.status == "failed"]:
            raise ValueError(f"these texts could not be ingested: {failed}")
        return time.monotonic() - started, sum(document.passages for document in documents)

    def filenames(self, collection: str) -> dict[str, str]:
        """File names by document id."""
        return {found.document_id: found.filename for found in self.retriever.documents(TENANT, collection)}

    def legs(self, collection: str) -> dict[str, Leg]:
        """The ways to search: words alone, vectors alone, and what the service does (which may refuse)."""
        with self.engine.connect() as connection:
            numbers = sorted(store.indexed_numbers(connection, TENANT, collection, self.embedder.name))
            kept = store.vectors_of(connection, numbers)
        vectors = np.frombuffer(b"".join(kept[number] for number in numbers), np.float32).reshape(len(numbers), -1)

        def by_words(query: str) -> list[Passage]:
            with self.engine.connect() as connection:
                found = lexical.search(connection, TENANT, collection, content_words(query), LIMIT)
            return self._passages(list(found))

        def by_vectors(query: str) -> list[Passage]:
            nearest = np.argsort(-(vectors @ self.embedder.embed([query])[0]), kind="stable")[:LIMIT]
            return self._passages([numbers[i] for i in nearest])

        return {"words": by_words, "vectors": by_vectors, "both": lambda query: self.search(collection, query)}

    def search(self, collection: str, query: str) -> list[Passage]:
        """As the service searches; [] when it refuses."""
        return [hit.passage for hit in self.retriever.search(TENANT, collection, query, LIMIT)]

    def _passages(self, numbers: Sequence[int]) -> list[Passage]:
        with self.engine.connect() as connection:
            found = store.passages_by_number(connection, TENANT, numbers)
        return [found[number] for number in numbers]


@contextmanager
def open_bench() -> Iterator[Bench]:
    """An empty one with the default embedder, in a folder that is removed afterwards."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    embedder = Embedder(resolve_embedder(Settings()), "cpu")
    with tempfile.TemporaryDirectory() as folder:
        engine = open_database(f"sqlite:///{folder}/eval.db")
        retriever = Retriever(engine, embedder, Path(folder))
        retriever.start()
        try:
            yield Bench(engine, retriever, embedder)
        finally:
            retriever.stop()
            engine.dispose()


def joined(question: Question) -> str:
    """The query of a turn: the last two messages of the user, the last one first."""
    return f"{question.text}\n{question.previous}".rstrip()
