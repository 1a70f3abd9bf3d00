"""CSV and TSV."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from retriever.errors import InvalidDocumentError
from retriever.extract.outline import assemble, bounded
from retriever.extract.plain import decode
from retriever.extract.tables import MAX_CELL_CHARS, table_lines
from retriever.model import Extracted

_SAMPLE_CHARS = 2**16
_DELIMITERS = ",;\t|"


def extract_csv(path: Path) -> Extracted:
    """Rows as lines; the delimiter is the one that shows in the first rows."""
    text, warnings = decode(path.read_bytes())
    return _table(text, _delimiter(text[:_SAMPLE_CHARS]), warnings)


def extract_tsv(path: Path) -> Extracted:
    """Rows as lines."""
    text, warnings = decode(path.read_bytes())
    return _table(text, "\t", warnings)


def _table(text: str, delimiter: str, warnings: list[str]) -> Extracted:
    return assemble([bounded(table_lines(_rows(text, delimiter)))], warnings=warnings)


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    csv.field_size_limit(2 * MAX_CELL_CHARS)
    try:
        yield from csv.reader(io.StringIO(text.replace("\0", ""), newline=""), delimiter=delimiter)
    except csv.Error as error:
        raise InvalidDocumentError(
            f"The table cannot be read: {error}. A quotation mark that is never closed is the usual reason."
        ) from error


def _delimiter(sample: str) -> str:
    """The sign that cuts the first rows into the same number of cells, and into the most."""
    lines = sample.split("\n")[:50]
    lines = lines[:-1] if len(lines) > 1 else lines  # the last may be cut off

    def fitness(delimiter: str) -> tuple[int, int]:
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        most = max(set(widths), key=widths.count, default=1)
        return (widths.count(most), most) if most > 1 else (0, 0)

    return max(_DELIMITERS, key=fitness)
