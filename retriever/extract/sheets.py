"""Spreadsheets (.xlsx), through openpyxl: a page for each sheet."""

import datetime
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree.ElementTree import ParseError

from openpyxl import load_workbook
from openpyxl.utils.exceptions import InvalidFileException

from retriever.errors import InvalidDocumentError
from retriever.extract.archive import check_archive
from retriever.extract.outline import assemble, bounded, heading
from retriever.extract.tables import table_lines
from retriever.model import Extracted


def extract(path: Path) -> Extracted:
    """Values as they were last computed. Hidden sheets are not read, and named in a warning."""
    check_archive(path, "spreadsheet", "xl/workbook.xml")
    try:
        with path.open("rb") as file:
            return _read(file)
    except (InvalidFileException, KeyError, ValueError, TypeError, IndexError, ParseError, zipfile.BadZipFile) as error:
        raise InvalidDocumentError("The spreadsheet is damaged. Save it anew as .xlsx and upload it again.") from error


def _read(file: BinaryIO) -> Extracted:
    workbook = load_workbook(file, read_only=True, data_only=True, keep_links=False)
    shown = [sheet for sheet in workbook.worksheets if sheet.sheet_state == "visible"]
    hidden = [sheet.title for sheet in workbook.worksheets if sheet.sheet_state != "visible"]
    pages = [bounded([heading(1, sheet.title), "", *table_lines(_rows(sheet))]) for sheet in shown]
    return assemble(
        pages,
        workbook.properties.title or "",
        [f"Not read, because it is hidden: the sheet {name!r}." for name in hidden],
    )


def _rows(sheet: Any) -> Iterator[list[str]]:
    sheet.reset_dimensions()  # what the file says of its size need not be true
    for row in sheet.iter_rows():
        yield [_shown(cell) for cell in row]


def _shown(cell: Any) -> str:
    """A cell's value as the program shows it, near enough to be found."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float | int):
        percent = "%" in (cell.number_format or "")
        return f"{value * 100:.10g}%" if percent else f"{value:.15g}"
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ", "minutes")
    return str(value)
