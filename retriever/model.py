"""What goes in and out of the retriever."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Document:
    """An uploaded document. `status`: queued, processing, ready or failed (`error` says why). `progress`: 0 to 1."""

    document_id: str
    filename: str
    collection: str
    title: str
    status: str
    error: str | None
    progress: float
    pages: int
    passages: int
    warnings: list[str] = field(default_factory=list)
    created_at: str = ""


@dataclass(frozen=True)
class Passage:
    """A span of a document: `text` is the document's extracted text from `start` to `end` (characters). `title`: the
    document's, and the headings above the passage, joined by " › ".
    """

    passage_id: str
    document_id: str
    title: str
    page: int
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Hit:
    """A passage that a query found. `score`: of words and meaning together. `similarity`: cosine of passage and query.
    `evidence`: how far it is about the query at all, 0 to 1.5."""

    passage: Passage
    score: float
    similarity: float
    evidence: float


@dataclass(frozen=True)
class Heading:
    """A heading of a document: where it begins in the text, its level (1 is the highest), and what it says."""

    start: int
    level: int
    title: str


@dataclass(frozen=True)
class Extracted:
    """The text of a file. `pages`: [start, end) of every page in `text`, in characters; one page where a format has
    none. `headings`: in the order of the text.
    """

    text: str
    pages: list[tuple[int, int]]
    title: str
    warnings: list[str]
    headings: list[Heading] = field(default_factory=list)
