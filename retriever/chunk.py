"""Text to passages: pieces that an embedder takes whole, with their offsets."""

from collections.abc import Callable
from dataclasses import dataclass

from semchunk.semchunk import chunkerify

from retriever.model import Extracted

PASSAGE_TOKENS = 200  # of the embedder; the default one cuts at 256
MAX_TOKEN_CHARS = 10  # some tokenizers make one unknown token of any long word: counted by its length all the same


@dataclass(frozen=True)
class Span:
    """`text[start:end]` of the document is a passage; `page` counts from 1."""

    page: int
    start: int
    end: int


def chunk(extracted: Extracted, count_tokens: Callable[[str], int], max_tokens: int) -> list[Span]:
    """Spans of at most about `max_tokens` tokens, split where the text has its joints. No passage crosses a page."""

    def count(text: str) -> int:
        return max(count_tokens(text), len(text) // MAX_TOKEN_CHARS)

    chunker = chunkerify(count, chunk_size=max_tokens, max_token_chars=None, memoize=False)
    spans = []
    for page, (start, end) in enumerate(extracted.pages, 1):
        text = extracted.text[start:end]
        if text.strip():
            pieces: list[str]
            offsets: list[tuple[int, int]]
            pieces, offsets = chunker(text, offsets=True)  # type: ignore[assignment]
            spans += [
                Span(page, start + first, start + last)
                for piece, (first, last) in zip(pieces, offsets, strict=True)
                if piece.strip()
            ]
    return spans
