"""Tables to lines. A small one keeps its shape; in a larger one every row says what its columns are, because a passage
may begin at any of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from retriever.errors import InvalidDocumentError

SMALL_BYTES = 480  # of UTF-8: such a table stays in one passage, whatever its script
MAX_CELL_CHARS = 100_000  # three times what a spreadsheet program lets a cell hold
MAX_COLUMNS = 2000
_MAX_LABEL_CHARS = 60  # a longer heading is shortened in the rows below it


def table_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """One line for each row that is not empty. InvalidDocumentError for a cell or row that no table has."""
    filled = (cells for row in rows if any(cells := [_cell(cell) for cell in row]))
    small: list[list[str]] = []
    size = 0
    for cells in filled:
        small.append(cells)
        size += sum(len(cell.encode()) + 3 for cell in cells)
        if size > SMALL_BYTES:
            yield from _labelled(chain(small, filled))
            return
    yield from (" | ".join(_trimmed(cells)) for cells in small)


def _labelled(rows: Iterator[list[str]]) -> Iterator[str]:
    """`Heading: value | Heading: value` when the first full row is one of headings; what stands above it is a line."""
    for above in rows:
        if len(_trimmed(above)) > 1 and any(above[1:]):
            break
        yield " | ".join(_trimmed(above))
    else:
        return
    yield " | ".join(_trimmed(above))
    labels = [_label(cell) for cell in above] if _is_heading(above) else []
    for row in rows:
        if labels:
            named = zip(row, labels + [""] * (len(row) - len(labels)), strict=False)
            yield " | ".join(f"{label}: {cell}" if label else cell for cell, label in named if cell)
        else:
            yield " | ".join(_trimmed(row))


def _is_heading(row: list[str]) -> bool:
    """Names, each once, and no numbers."""
    names = [cell for cell in row if cell]
    return len(set(names)) == len(names) and not any(name.lstrip("+-$€£¥")[:1].isdecimal() for name in names)


def _label(cell: str) -> str:
    return cell if len(cell) <= _MAX_LABEL_CHARS else f"{cell[:_MAX_LABEL_CHARS]}…"


def _cell(cell: str) -> str:
    if len(cell) > MAX_CELL_CHARS:
        raise InvalidDocumentError(
            f"A cell of a table holds {len(cell):,} characters, more than {MAX_CELL_CHARS:,}. "
            "Check how the table was written, or upload such text as txt."
        )
    return " ".join(cell.split())


def _trimmed(row: list[str]) -> list[str]:
    """Without the empty cells at its end."""
    if len(row) > MAX_COLUMNS:
        raise InvalidDocumentError(f"A row of a table has {len(row):,} cells, more than {MAX_COLUMNS:,}.")
    end = len(row)
    while end and not row[end - 1]:
        end -= 1
    return row[:end]
