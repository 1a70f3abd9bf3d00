"""Headings: marked while a text is put together, and taken out again with their places once it is clean."""

import re
from collections.abc import Iterable

from retriever.errors import InvalidDocumentError
from retriever.extract.clean import clean, clean_title
from retriever.model import Extracted, Heading

MAX_TEXT_CHARS = 30_000_000  # some 10,000 pages
PAGE_BREAK = "\n\n"
# a code point that Unicode keeps free for such uses; a document that holds it makes a heading, no more
_MARK = "\ufdd0"
_MARKED = re.compile(rf"{_MARK}([1-9]?)([^\n]*)")


def heading(level: int, text: str) -> str:
    """`text` in one line, to be found again as a heading of a level from 1 to 9."""
    title = " ".join(text.split())
    return f"{_MARK}{level}{title}" if title else ""


def too_long() -> InvalidDocumentError:
    """The error for more text than a document may hold."""
    return InvalidDocumentError(f"The document holds more than {MAX_TEXT_CHARS:,} characters. Split it.")


def bounded(lines: Iterable[str]) -> str:
    """Lines joined. InvalidDocumentError as soon as they are more text than a document may hold."""
    kept, size = [], 0
    for line in lines:
        size += len(line) + 1
        if size > MAX_TEXT_CHARS:
            raise too_long()
        kept.append(line)
    return "\n".join(kept)


def assemble(pages: Iterable[str], title: str = "", warnings: Iterable[str] = ()) -> Extracted:
    """Cleaned pages one behind another, their headings with places."""
    texts: list[str] = []
    spans: list[tuple[int, int]] = []
    headings: list[Heading] = []
    position = 0
    for page in pages:
        text, found = _settled(clean(page), position)
        texts.append(text)
        headings += found
        spans.append((position, position + len(text)))
        position += len(text) + len(PAGE_BREAK)
    return Extracted(
        PAGE_BREAK.join(texts), spans, clean_title(title), [clean(warning) for warning in warnings], headings
    )


def _settled(marked: str, offset: int) -> tuple[str, list[Heading]]:
    pieces, headings, last = [], [], 0
    size = 0
    for match in _MARKED.finditer(marked):
        before, title = marked[last : match.start()], match[2].replace(_MARK, "")
        pieces += [before, title]
        size += len(before)
        if match[1] and title:
            headings.append(Heading(offset + size, int(match[1]), clean_title(title)))
        size += len(title)
        last = match.end()
    return "".join([*pieces, marked[last:]]), headings
