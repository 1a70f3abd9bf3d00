"""Texts to vectors."""

import copy
import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BATCH = 8  # texts that run at once: small, so that a query waits for little while documents are embedded


class Embedder:
    """A sentence-transformers model: a local folder or a hub id. Thread-safe; one text or batch at a time."""

    def __init__(self, path: str, device: str) -> None:
        from sentence_transformers import SentenceTransformer  # seconds: not for commands that embed nothing

        self._model = SentenceTransformer(path, device=device)
        self._lock = threading.Lock()
        # of its own: counting would switch off the cutting of a text that another thread is about to embed
        self._counter = copy.deepcopy(self._model.tokenizer)
        self._counter_lock = threading.Lock()
        dimension = self._model.get_embedding_dimension()
        assert dimension is not None
        self.dimension = int(dimension)
        self.max_tokens = int(self._model.max_seq_length or 512)
        self.name = _name(path, self.dimension)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of length 1 [texts, dimension]."""
        with self._lock:
            vectors = self._model.encode(
                list(texts), batch_size=BATCH, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
            )
        return np.ascontiguousarray(vectors, dtype=np.float32)

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` for this model, without special ones."""
        with self._counter_lock:
            return len(self._counter.encode(text, add_special_tokens=False, verbose=False))


def _name(path: str, dimension: int) -> str:
    """What vectors must agree in: the folder's weights, or the hub id."""
    weights = Path(path) / "model.safetensors"
    if not weights.is_file():
        return f"{path}:{dimension}"
    with weights.open("rb") as file:
        return f"{Path(path).name}:{dimension}:{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"
