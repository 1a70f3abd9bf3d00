"""The error tree of the retriever.

RetrieverError
├── DocumentNotFoundError     no such document, or another tenant's
├── UnsupportedTypeError      the file's type cannot be read, or is not what its name says
├── InvalidDocumentError      the file cannot be used: empty, encrypted, damaged, without text
└── StoreError                the database is of another version or kind
"""


class RetrieverError(Exception):
    """Base of the retriever's errors."""


class DocumentNotFoundError(RetrieverError):
    """The document does not exist, or belongs to another tenant."""

    def __init__(self, document_id: str) -> None:
        super().__init__(f"There is no document {document_id!r}.")


class UnsupportedTypeError(RetrieverError):
    """A file of a type that cannot be read."""

    def __init__(self, filename: str, reason: str) -> None:
        super().__init__(
            f"{filename!r} cannot be read: {reason}. Upload txt, md, html, pdf, docx, pptx, xlsx, csv, tsv, "
            "json, jsonl, epub, eml or source code."
        )


class InvalidDocumentError(RetrieverError):
    """A file of a known type that cannot be used; the message says why and what to do."""


class StoreError(RetrieverError):
    """The database cannot hold this retriever's documents; the message says why and what to do."""
