"""Word documents: paragraphs and tables in their order."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docx import Document
from docx.opc.exceptions import PackageNotFoundError
from docx.oxml.ns import qn
from lxml.etree import XMLSyntaxError

from retriever.errors import InvalidDocumentError
from retriever.extract.clean import clean, clean_title
from retriever.model import Extracted

MAX_UNPACKED_BYTES = 300 * 2**20
MAX_XML_BYTES = 50 * 2**20  # some 10,000 pages; a tree of XML takes many times its bytes
MAX_RATIO = 200  # unpacked to packed bytes; XML rarely passes 30
MAX_MEMBERS = 10_000

_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"  # says again what came before it
_HIDDEN = frozenset((_FALLBACK, *map(qn, ("w:pPr", "w:rPr", "w:moveFrom", "w:del", "w:instrText"))))
_SIGNS = {qn("w:tab"): "\t", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}
_PARAGRAPH, _TABLE, _ROW, _CELL, _TEXT = (qn(name) for name in ("w:p", "w:tbl", "w:tr", "w:tc", "w:t"))
_STYLE = f"{qn('w:pPr')}/{qn('w:pStyle')}"


def extract(path: Path) -> Extracted:
    """Paragraphs a line each, table rows with their cells between bars. Headers, footers and notes are left out."""
    _check_archive(path)
    try:
        document = Document(str(path))
        headings = {style.style_id for style in document.styles if str(style.name).startswith("Heading")}
        lines = list(_lines(document.element.body, headings))
        title = clean_title(document.core_properties.title)
    except (PackageNotFoundError, KeyError, ValueError, zipfile.BadZipFile, XMLSyntaxError) as error:
        raise InvalidDocumentError(
            "The Word document is damaged. Save it anew as .docx and upload it again."
        ) from error
    text = clean("\n".join(lines))
    return Extracted(text, [(0, len(text))], title, [])


def _check_archive(path: Path) -> None:
    """Refuse archives that would unpack to far more than they are, before anything is unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile as error:
        raise InvalidDocumentError("The Word document is damaged: it is not a whole archive.") from error
    unpacked = sum(member.file_size for member in members)
    xml = sum(member.file_size for member in members if member.filename.endswith((".xml", ".rels")))
    too_dense = unpacked > 2**20 and unpacked > MAX_RATIO * max(path.stat().st_size, 1)
    if unpacked > MAX_UNPACKED_BYTES or xml > MAX_XML_BYTES or too_dense or len(members) > MAX_MEMBERS:
        raise InvalidDocumentError("The Word document unpacks to far more than a document holds and was refused.")
    if not any(member.filename == "word/document.xml" for member in members):
        raise InvalidDocumentError("The archive is not a Word document.")


# python-docx's own paragraphs leave out inserted text and content controls, and take minutes for a thousand pages
def _lines(parent: Any, headings: set[str]) -> Iterator[str]:
    for child in parent:
        if child.tag == _PARAGRAPH:
            yield "".join(_pieces(child))
            style = child.find(_STYLE)
            if style is not None and style.get(qn("w:val")) in headings:
                yield ""
        elif child.tag == _TABLE:
            yield ""
            yield from _rows(child)
            yield ""
        elif child.tag not in _HIDDEN:
            yield from _lines(child, headings)  # content controls and their like


def _rows(table: Any) -> Iterator[str]:
    for row in table.iter(_ROW):
        if next(row.iterancestors(_TABLE)) is table:
            cells = [cell for cell in row.iter(_CELL) if next(cell.iterancestors(_ROW)) is row]
            yield " | ".join(" ".join(" ".join(_lines(cell, set())).split()) for cell in cells)


def _pieces(node: Any) -> Iterator[str]:
    for child in node:
        if child.tag == _TEXT:
            yield child.text or ""
        elif child.tag in _SIGNS:
            yield _SIGNS[child.tag]
        elif child.tag not in _HIDDEN:
            yield from _pieces(child)
