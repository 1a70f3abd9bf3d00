"""The answer object of the HTTP contract, and the events of a turn that lead to it."""

from dataclasses import dataclass

from app.citations import Citation
from retriever import Passage


@dataclass(frozen=True)
class AnswerPassage:
    """A passage that this turn could use; `in_session` says that the session already held it."""

    passage_id: str
    document_id: str
    title: str
    page: int
    start: int
    end: int
    text: str
    score: float
    in_session: bool

    def passage(self) -> Passage:
        """The passage without what belongs to the turn."""
        return Passage(self.passage_id, self.document_id, self.title, self.page, self.start, self.end, self.text)


@dataclass(frozen=True)
class Usage:
    """`prompt_tokens`: all tokens of the turn's context. `cached_tokens`: those whose KV was reused and not computed.
    `kept_tokens`: entries per KV head of the working cache. `cache_bytes`: what the session's stored cache holds."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    kept_tokens: int = 0
    cache_bytes: int = 0


@dataclass(frozen=True)
class Timings:
    """Milliseconds. `first_token_ms` and `total_ms` count from the start of the turn."""

    queue_ms: float = 0
    retrieve_ms: float = 0
    restore_ms: float = 0
    prefill_ms: float = 0
    first_token_ms: float = 0
    decode_ms: float = 0
    total_ms: float = 0


@dataclass(frozen=True)
class Compression:
    """How the working cache was chosen."""

    policy: str
    budget: int
    window: int
    kernel: int


@dataclass(frozen=True)
class Answer:
    """What a turn returns. `notices` says what the person should know: passages left out, a conversation cut short."""

    id: str
    session_id: str | None
    turn: int
    answer: str
    answerable: bool
    finish_reason: str
    citations: list[Citation]
    passages: list[AnswerPassage]
    usage: Usage
    timings: Timings
    model: str
    compression: Compression
    notices: list[str]


@dataclass(frozen=True)
class PassagesFound:
    """The passages of the turn, before the first token."""

    passages: list[AnswerPassage]
    session_id: str | None


@dataclass(frozen=True)
class Delta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class CitationFound:
    """A citation of the finished answer."""

    citation: Citation


@dataclass(frozen=True)
class Done:
    """The turn is durable."""

    answer: Answer


Event = PassagesFound | Delta | CitationFound | Done
