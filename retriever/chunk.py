"""Text to passages: pieces that an embedder takes whole, with their offsets and the headings above them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os.path import commonprefix
from typing import NamedTuple

from semchunk.semchunk import chunkerify

from retriever.model import Extracted, Heading

PASSAGE_TOKENS = 200  # of the embedder; the default one cuts at 256
MAX_TOKEN_CHARS = 10  # some tokenizers make one unknown token of any long word: counted by its length all the same
SECTION_SEPARATOR = " › "
MAX_TITLE_CHARS = 80  # of one heading in a path


@dataclass(frozen=True)
class Span:
    """`text[start:end]` of the document is a passage; `page` counts from 1; `section` is the path of its headings."""

    page: int
    start: int
    end: int
    section: str = ""


def chunk(extracted: Extracted, count_tokens: Callable[[str], int], max_tokens: int) -> list[Span]:
    """Spans of at most about `max_tokens` tokens, split where the text has its joints. No passage crosses a page, and
    none begins in one section and ends in another, unless it holds them whole.
    """

    def count(text: str) -> int:
        return max(count_tokens(text), len(text) // MAX_TOKEN_CHARS)

    chunker = chunkerify(count, chunk_size=max_tokens, max_token_chars=None, memoize=False)
    spans = []
    for page, start, end, path in _groups(extracted, count, max_tokens):
        pieces: list[str]
        offsets: list[tuple[int, int]]
        pieces, offsets = chunker(extracted.text[start:end].rstrip(), offsets=True)  # type: ignore[assignment]
        spans += [
            Span(page, start + first, start + last, SECTION_SEPARATOR.join(path))
            for piece, (first, last) in zip(pieces, offsets, strict=True)
            if piece.strip()
        ]
    return spans


def _groups(extracted: Extracted, count: Callable[[str], int], max_tokens: int) -> Iterator["_Section"]:
    """What is cut by itself: a section, or neighbours that fit into one passage, under the headings that they share."""
    text = extracted.text
    held: list[_Section] = []

    def fits(other: _Section) -> bool:
        start, end = held[0].start, other.end
        too_long = end - start > max_tokens * MAX_TOKEN_CHARS  # counting what cannot fit would cost the most
        return held[0].page == other.page and not too_long and count(text[start:end]) <= max_tokens

    for section in _sections(extracted):
        if held and not fits(section):
            yield _joined(held)
            held = []
        if text[section.start : section.end].strip():
            held.append(section)
    if held:
        yield _joined(held)


def _joined(sections: list["_Section"]) -> "_Section":
    path = commonprefix([section.path for section in sections])
    return _Section(sections[0].page, sections[0].start, sections[-1].end, tuple(path))


def _sections(extracted: Extracted) -> Iterator["_Section"]:
    """The stretches between headings and pages."""
    path: list[Heading] = []
    waiting = list(reversed(extracted.headings))
    for page, (start, end) in enumerate(extracted.pages, 1):
        while waiting and waiting[-1].start < end:
            heading = waiting.pop()
            if not _is_alone(extracted.text, path, heading):
                if heading.start > start:
                    yield _Section(page, start, heading.start, _titles(path))
                start = heading.start
            path = [*(above for above in path if above.level < heading.level), heading]
        yield _Section(page, start, end, _titles(path))


def _is_alone(text: str, path: list[Heading], next_one: Heading) -> bool:
    """Whether nothing stands between a heading and the first one below it: they begin one section."""
    return bool(path) and next_one.level > path[-1].level and "\n" not in text[path[-1].start : next_one.start].strip()


def _titles(path: list[Heading]) -> tuple[str, ...]:
    return tuple(heading.title[:MAX_TITLE_CHARS] for heading in path)


class _Section(NamedTuple):
    page: int
    start: int
    end: int
    path: tuple[str, ...]
