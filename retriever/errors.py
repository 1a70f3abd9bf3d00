"""The error tree of the retriever.

RetrieverError
├── DocumentNotFoundError     no such document, or another tenant's
├── UnsupportedTypeError      the file's type cannot be read, or is not what its name says
├── InvalidDocumentError      the file cannot be used: empty, encrypted, damaged, without text
└── StoreError                the store was written by another version
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
        super().__init__(f"{filename!r} cannot be read: {reason}. Upload txt, md, html, pdf or docx.")


class InvalidDocumentError(RetrieverError):
    """A file of a known type that cannot be used."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class StoreError(RetrieverError):
    """The database was written by another version of snaprag."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"The store has schema version {found}; this version of snaprag knows {known}. Use its version."
        )
