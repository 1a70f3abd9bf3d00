"""Word documents: paragraphs, tables and notes in their order, headers before them and footers behind."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docx import Document
from docx.opc.constants import RELATIONSHIP_TYPE as RT
from docx.opc.exceptions import PackageNotFoundError
from docx.oxml import parse_xml
from docx.oxml.ns import qn
from lxml.etree import XMLSyntaxError

from retriever.errors import InvalidDocumentError
from retriever.extract.archive import check_archive
from retriever.extract.outline import assemble, bounded, heading
from retriever.extract.tables import table_lines
from retriever.model import Extracted

_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"  # says again what came before it
_HIDDEN = frozenset((_FALLBACK, *map(qn, ("w:pPr", "w:rPr", "w:moveFrom", "w:del", "w:instrText"))))
_SIGNS = {qn("w:tab"): "\t", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}
_PARAGRAPH, _TABLE, _ROW, _CELL, _TEXT = (qn(name) for name in ("w:p", "w:tbl", "w:tr", "w:tc", "w:t"))
_STYLE = f"{qn('w:pPr')}/{qn('w:pStyle')}"
_NOTES = {qn("w:footnoteReference"): RT.FOOTNOTES, qn("w:endnoteReference"): RT.ENDNOTES}
_ID, _TYPE = qn("w:id"), qn("w:type")


def extract(path: Path) -> Extracted:
    """Paragraphs a line each, tables as rows, notes behind their paragraph; headers and footers once."""
    check_archive(path, "Word document", "word/document.xml")
    try:
        document = Document(str(path))
        text = bounded(_Reader(document).lines())
        title = document.core_properties.title
    except (PackageNotFoundError, KeyError, ValueError, AttributeError, zipfile.BadZipFile, XMLSyntaxError) as error:
        raise InvalidDocumentError(
            "The Word document is damaged. Save it anew as .docx and upload it again."
        ) from error
    return assemble([text], title)


# python-docx's own paragraphs leave out inserted text and content controls, and take minutes for a thousand pages
class _Reader:
    def __init__(self, document: Any) -> None:
        self._body = document.element.body
        self._parts = [(relation.reltype, relation) for relation in document.part.rels.values()]
        self._levels = dict(_levels(document.styles))
        self._notes = {tag: self._notes_of(kind) for tag, kind in _NOTES.items()}
        self._pending: list[tuple[str, Any]] = []  # notes that the paragraph at hand refers to
        self._numbered = 0

    def lines(self) -> Iterator[str]:
        yield from self._around(RT.HEADER)
        yield from self._lines(self._body)
        yield ""
        yield from self._around(RT.FOOTER)

    def _around(self, kind: str) -> list[str]:
        """The lines of all headers or of all footers, each once; page numbers are none."""
        elements = [relation.target_part.element for reltype, relation in self._parts if reltype == kind]
        lines = (line.strip() for element in elements for line in self._lines(element))
        once = [line for line in dict.fromkeys(lines) if any(character.isalpha() for character in line)]
        return [*once, ""] if once else []

    def _notes_of(self, kind: str) -> dict[str, Any]:
        parts = [relation.target_part for reltype, relation in self._parts if reltype == kind]
        notes = (note for part in parts for note in parse_xml(part.blob) if note.get(_TYPE) in (None, "normal"))
        return {note.get(_ID): note for note in notes}

    def _lines(self, parent: Any) -> Iterator[str]:
        for child in parent:
            if child.tag == _PARAGRAPH:
                yield from self._paragraph(child)
            elif child.tag == _TABLE:
                yield ""
                yield from table_lines(self._rows(child))
                yield ""
            elif child.tag not in _HIDDEN:
                yield from self._lines(child)  # content controls and their like

    def _paragraph(self, paragraph: Any) -> Iterator[str]:
        text = "".join(self._pieces(paragraph))
        style = paragraph.find(_STYLE)
        level = 0 if style is None else self._levels.get(style.get(qn("w:val")), 0)
        if level:
            yield ""
        yield heading(level, text) if level else text
        if level:
            yield ""
        pending, self._pending = self._pending, []
        for number, note in pending:
            yield f"[{number}] {' '.join(' '.join(self._lines(note)).split())}"

    def _rows(self, table: Any) -> Iterator[list[str]]:
        for row in table.iter(_ROW):
            if next(row.iterancestors(_TABLE)) is table:
                cells = [cell for cell in row.iter(_CELL) if next(cell.iterancestors(_ROW)) is row]
                yield [" ".join(self._lines(cell)) for cell in cells]

    def _pieces(self, node: Any) -> Iterator[str]:
        for child in node:
            if child.tag == _TEXT:
                yield child.text or ""
            elif child.tag in _SIGNS:
                yield _SIGNS[child.tag]
            elif child.tag in self._notes:
                yield self._reference(child)
            elif child.tag not in _HIDDEN:
                yield from self._pieces(child)

    def _reference(self, reference: Any) -> str:
        note = self._notes[reference.tag].pop(reference.get(_ID), None)  # once: a note that cites itself would not end
        if note is None:
            return ""
        self._numbered += 1
        self._pending.append((str(self._numbered), note))
        return f"[{self._numbered}]"


def _levels(styles: Any) -> Iterator[tuple[str, int]]:
    """The level of every style that makes headings."""
    for style in styles:
        kind, _, level = str(style.name).rpartition(" ")
        if kind in ("Heading", "heading") and level.isdecimal():
            yield style.style_id, min(max(int(level), 1), 9)
        elif style.name == "Title":
            yield style.style_id, 1
