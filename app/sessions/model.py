"""What the database holds of a session, as plain values."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

TITLE_CHARS = 80


@dataclass(frozen=True)
class Session:
    """A conversation. `turns` is how many are committed; `title` is the first message, shortened."""

    session_id: str
    tenant: str
    collection: str
    title: str
    turns: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class TurnRecord:
    """A committed turn: the answer object as it was sent, and the tokens that the turn added to the sequence.

    `token_ids` are all tokens that the turn appended, prompt and answer; none when the model was not asked.
    `starts_over` says that they do not continue the earlier turns but begin a sequence of their own. Passages and
    citation sources are dictionaries that carry at least `document_id`.
    """

    number: int
    answer_id: str
    message: str
    answer: str
    answerable: bool
    finish_reason: str
    citations: list[dict[str, Any]]
    passages: list[dict[str, Any]]
    usage: dict[str, Any]
    timings: dict[str, Any]
    model: str
    compression: dict[str, Any]
    notices: list[str] = field(default_factory=list)
    token_ids: Sequence[int] = ()
    starts_over: bool = False
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def documents(self) -> set[str]:
        """Ids of the documents whose text the turn holds."""
        sources = [source for citation in self.citations for source in citation["sources"]]
        return {item["document_id"] for item in [*self.passages, *sources]}


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as uint32, little endian. Raises OverflowError for what does not fit."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(packed: bytes) -> list[int]:
    """The inverse of `pack_tokens`."""
    token_ids = array("I", packed)
    if sys.byteorder == "big":
        token_ids.byteswap()
    return token_ids.tolist()


def shorten(message: str) -> str:
    """A title: the message on one line, cut to TITLE_CHARS."""
    line = " ".join(message.split())
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1].rstrip() + "…"
