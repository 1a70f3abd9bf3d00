"""Presentations (.pptx), through python-pptx: a page for each slide."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lxml.etree import XMLSyntaxError
from pptx import Presentation
from pptx.exc import PackageNotFoundError

from retriever.errors import InvalidDocumentError
from retriever.extract.archive import check_archive
from retriever.extract.outline import assemble, bounded, heading
from retriever.extract.tables import table_lines
from retriever.model import Extracted

MAX_GROUPS = 50  # of shapes inside one another


def extract(path: Path) -> Extracted:
    """Titles, text, tables, charts and the speaker's notes. Hidden slides stay empty, and are named in a warning."""
    check_archive(path, "presentation", "ppt/presentation.xml")
    try:
        presentation = Presentation(str(path))
        slides = list(presentation.slides)
        hidden = [number for number, slide in enumerate(slides, 1) if slide.element.get("show") in ("0", "false")]
        pages = ["" if number in hidden else bounded(_slide(slide)) for number, slide in enumerate(slides, 1)]
        title = presentation.core_properties.title
    except (PackageNotFoundError, KeyError, ValueError, AttributeError, zipfile.BadZipFile, XMLSyntaxError) as error:
        raise InvalidDocumentError("The presentation is damaged. Save it anew as .pptx and upload it again.") from error
    return assemble(pages, title, [f"Not read, because it is hidden: slide {number}." for number in hidden])


def _slide(slide: Any) -> Iterator[str]:
    title = slide.shapes.title
    if title is not None and title.has_text_frame:
        yield heading(1, title.text_frame.text)
    for shape in slide.shapes:
        if title is None or shape.shape_id != title.shape_id:
            yield from _shape(shape, 0)
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        notes = slide.notes_slide.notes_text_frame.text
        yield from ("", f"Notes: {notes}") if notes.strip() else ()


def _shape(shape: Any, depth: int) -> Iterator[str]:
    if hasattr(shape, "shapes"):
        if depth == MAX_GROUPS:
            raise InvalidDocumentError(f"The presentation has more than {MAX_GROUPS} groups inside one another.")
        for inner in shape.shapes:
            yield from _shape(inner, depth + 1)
    elif shape.has_text_frame and shape.text_frame.text.strip():
        yield from ("", shape.text_frame.text.replace("\v", "\n"))
    elif getattr(shape, "has_table", False):
        yield from ("", *table_lines([cell.text for cell in row.cells] for row in shape.table.rows), "")
    elif getattr(shape, "has_chart", False):
        yield from ("", *table_lines(_chart(shape.chart)), "")


def _chart(chart: Any) -> Iterator[list[str]]:
    """Its title, then a row for each category with the values of all series."""
    if chart.has_title and chart.chart_title.has_text_frame:
        yield [chart.chart_title.text_frame.text]
    for plot in chart.plots:
        yield ["", *(series.name for series in plot.series)]
        columns = [[str(category) for category in plot.categories], *(list(series.values) for series in plot.series)]
        for row in zip(*columns, strict=False):
            yield [
                "" if value is None else f"{value:.15g}" if isinstance(value, float) else str(value) for value in row
            ]
