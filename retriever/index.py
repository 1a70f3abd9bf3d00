"""The dense leg: an exact index in memory, made from the vectors in the database."""

import threading
from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray


class VectorIndex:
    """Inner products over vectors of length 1. Thread-safe: faiss is not, when one thread adds and another searches."""

    def __init__(self, dimension: int) -> None:
        self._index = faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))
        self._lock = threading.Lock()
        self.changes = -1
        """Of the collection, when it was last read."""

    def numbers(self) -> set[int]:
        """Numbers of all passages in it."""
        with self._lock:
            return set(faiss.vector_to_array(self._index.id_map).tolist())

    def add(self, numbers: Sequence[int], vectors: NDArray[np.float32]) -> None:
        """Add vectors [passages, dimension] under their passages' numbers."""
        with self._lock:
            self._index.add_with_ids(vectors, np.asarray(numbers, dtype=np.int64))

    def remove(self, numbers: Sequence[int]) -> None:
        """Forget passages; unknown numbers are ignored."""
        with self._lock:
            self._index.remove_ids(faiss.IDSelectorBatch(np.asarray(numbers, dtype=np.int64)))

    def search(self, query: NDArray[np.float32], limit: int) -> dict[int, float]:
        """Cosine of the nearest passages to `query` [dimension], nearest first."""
        with self._lock:
            similarities, numbers = self._index.search(query[None], limit)
        pairs = zip(numbers[0].tolist(), similarities[0].tolist(), strict=True)
        return {number: similarity for number, similarity in pairs if number != -1}

    def similarity(self, query: NDArray[np.float32], number: int) -> float:
        """Cosine of one passage; 0 when it is gone."""
        with self._lock:
            try:
                return float(query @ self._index.reconstruct(number))
            except RuntimeError:
                return 0.0
