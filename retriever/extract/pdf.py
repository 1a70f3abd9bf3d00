"""PDF, through PDFium."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pypdfium2 as pdfium

from retriever.errors import InvalidDocumentError
from retriever.extract.clean import clean, clean_title
from retriever.model import Extracted

_PAGE_BREAK = "\n\n"
_RIGHT_TO_LEFT = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")


def extract(path: Path, on_page: Callable[[float], None] = lambda done: None) -> Extracted:
    """The text layer, page by page. Pages without one are named in a warning; none at all is an error.

    `on_page` is called after each page with the share that is done.
    """
    try:
        document = pdfium.PdfDocument(path)
    except pdfium.PdfiumError as error:
        raise InvalidDocumentError(_why(error)) from error
    try:
        if len(document) == 0:
            raise InvalidDocumentError("The PDF has no pages.")
        texts = []
        for index in range(len(document)):
            texts.append(_text(document, index))
            on_page((index + 1) / len(document))
        title = clean_title(document.get_metadata_dict().get("Title"))
    finally:
        document.close()
    if not any(texts):
        raise InvalidDocumentError(
            f"No page of the PDF has a text layer ({len(texts)} {'page' if len(texts) == 1 else 'pages'}): "
            "it is a scan. Run OCR on it and upload the result."
        )
    return _joined(texts, title, _warnings(texts))


def _why(error: pdfium.PdfiumError) -> str:
    if "password" in str(error).lower():
        return "The PDF is encrypted. Remove its password and upload it again."
    return "The PDF is damaged and cannot be opened. Save it anew and upload it again."


def _text(document: pdfium.PdfDocument, index: int) -> str:
    try:
        page = document[index]
        text = str(page.get_textpage().get_text_bounded())
        page.close()
    except pdfium.PdfiumError:
        text = ""  # a damaged page counts as one without text and is named
    # PDFium marks a hyphen at a line's end with U+FFFE
    text = clean(text.replace("\ufffe\r\n", "").replace("\ufffe\n", "").replace("\ufffe", ""))
    return _without_number(text, index + 1)


def _without_number(text: str, number: int) -> str:
    """A page's text without its printed number, when that stands alone on its first or last line."""
    lines = text.split("\n")
    if len(lines) > 1 and lines[-1].strip() == str(number):
        lines.pop()
    elif len(lines) > 1 and lines[0].strip() == str(number):
        del lines[0]
    return "\n".join(lines).strip()


def _warnings(texts: Sequence[str]) -> list[str]:
    empty = [number for number, text in enumerate(texts, 1) if not text]
    right_to_left = [number for number, text in enumerate(texts, 1) if _RIGHT_TO_LEFT.search(text)]
    warnings = []
    if empty:
        warnings.append(f"No text layer on page {_ranges(empty)}: nothing of it can be found.")
    if right_to_left:
        warnings.append(
            f"Right-to-left text on page {_ranges(right_to_left)}: PDF files often keep its letters in another order."
        )
    return warnings


def _joined(texts: list[str], title: str, warnings: list[str]) -> Extracted:
    pages, position = [], 0
    for text in texts:
        pages.append((position, position + len(text)))
        position += len(text) + len(_PAGE_BREAK)
    return Extracted(_PAGE_BREAK.join(texts), pages, title, warnings)


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 7 -> "1-3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
