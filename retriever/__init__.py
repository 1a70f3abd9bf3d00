"""Documents in, passages out: extraction, chunking, embedding, hybrid search."""

from retriever.database import open_database
from retriever.embed import Embedder
from retriever.errors import (
    DocumentNotFoundError,
    InvalidDocumentError,
    RetrieverError,
    StoreError,
    UnsupportedTypeError,
)
from retriever.extract import SUFFIXES
from retriever.lexical import content_words
from retriever.model import Document, Extracted, Hit, Passage
from retriever.retriever import Retriever

__all__ = [
    "SUFFIXES",
    "Document",
    "DocumentNotFoundError",
    "Embedder",
    "Extracted",
    "Hit",
    "InvalidDocumentError",
    "Passage",
    "Retriever",
    "RetrieverError",
    "StoreError",
    "UnsupportedTypeError",
    "content_words",
    "open_database",
]
