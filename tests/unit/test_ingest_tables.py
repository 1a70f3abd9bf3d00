"""CSV, TSV, JSON and spreadsheets: rows that can be read alone, whatever passage they end up in."""

import datetime
import io
import json
from collections.abc import Callable

import pytest
from openpyxl import Workbook

from retriever import Extracted, InvalidDocumentError, UnsupportedTypeError
from retriever.chunk import chunk
from retriever.extract.tables import table_lines

Read = Callable[[str, bytes], Extracted]
PARTS = "Part;Torque\nM8;25 Nm\nM10;50 Nm\n"


def saved(workbook: Workbook) -> bytes:
    stream = io.BytesIO()
    workbook.save(stream)
    return stream.getvalue()


def test_a_small_table_keeps_its_shape(read: Read) -> None:
    expected = "Part | Torque\nM8 | 25 Nm\nM10 | 50 Nm"
    assert read("a.csv", PARTS.encode()).text == expected
    assert read("a.csv", PARTS.replace(";", ",").encode("utf-16")).text == expected
    assert read("a.tsv", PARTS.replace(";", "\t").encode()).text == expected


def test_every_row_of_a_large_table_says_what_its_columns_are(read: Read) -> None:
    rows = "".join(f'M{size},"{size} Nm, dry",\n' for size in range(200))
    extracted = read("a.csv", f"Part,Torque,Note\n{rows}".encode())
    lines = extracted.text.split("\n")
    assert lines[0] == "Part | Torque | Note"
    assert lines[-1] == "Part: M199 | Torque: 199 Nm, dry"
    for span in chunk(extracted, lambda text: len(text) // 4, 200):
        assert "Torque" in extracted.text[span.start : span.end]


def test_a_title_above_a_table_is_no_heading_and_numbers_are_none() -> None:
    rows = [["Torques of 2026"], [], ["Part", "Torque"], *([f"M{i}", f"{i} Nm"] for i in range(100))]
    assert list(table_lines(rows))[:3] == ["Torques of 2026", "Part | Torque", "Part: M0 | Torque: 0 Nm"]
    numbers = [[str(i), str(2 * i)] for i in range(100)]
    assert list(table_lines(numbers))[99] == "99 | 198"


@pytest.mark.parametrize(
    ("content", "says"), [('a,b\n1,"' + "x" * 300_000, "never closed"), ("a,b\n1," + "x" * 150_000, "cell of a table")]
)
def test_huge_cells_are_refused(read: Read, content: str, says: str) -> None:
    with pytest.raises(InvalidDocumentError, match=says):
        read("a.csv", content.encode())


def test_more_text_than_a_document_may_hold_is_refused(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retriever.extract.outline.MAX_TEXT_CHARS", 1000)
    with pytest.raises(InvalidDocumentError, match="more than 1,000 characters"):
        read("a.csv", b"Name,Value\n" + b"something,else\n" * 100)


def test_a_spreadsheet_is_read_sheet_by_sheet_as_it_is_shown(read: Read) -> None:
    workbook = Workbook()
    prices, secret = workbook.worksheets[0], workbook.create_sheet("Margins")
    prices.title = "Prices 価格"
    prices.append(["Part", "Price", "Share", "From", "Sold"])
    prices.append(["M8", 1.1, 0.25, datetime.date(2026, 3, 1), True])
    prices["C2"].number_format = "0%"
    workbook.create_sheet("Empty")
    workbook.create_sheet("Notes").append(["Only one cell"])
    secret.append(["Margin", "90%"])
    secret.sheet_state = "hidden"
    extracted = read("a.xlsx", saved(workbook))
    pages = [extracted.text[start:end] for start, end in extracted.pages]
    assert pages == [
        "Prices 価格\n\nPart | Price | Share | From | Sold\nM8 | 1.1 | 25% | 2026-03-01 | TRUE",
        "Empty",
        "Notes\n\nOnly one cell",
    ]
    assert extracted.warnings == ["Not read, because it is hidden: the sheet 'Margins'."]
    assert [heading.title for heading in extracted.headings] == ["Prices 価格", "Empty", "Notes"]


def test_one_cell_far_away_takes_no_minutes(read: Read) -> None:
    workbook = Workbook()
    workbook.worksheets[0]["A1048576"] = "far"
    assert read("a.xlsx", saved(workbook)).text == "Sheet\n\nfar"


def test_old_and_damaged_office_files_say_so(read: Read) -> None:
    for name in ("a.xlsx", "a.pptx"):
        with pytest.raises(UnsupportedTypeError, match="password"):
            read(name, b"\xd0\xcf\x11\xe0\xa1\xb1")
        with pytest.raises(InvalidDocumentError, match="not a whole archive"):
            read(name, b"PK\x03\x04 and no more")
    with pytest.raises(InvalidDocumentError, match="not a presentation"):
        read("a.pptx", saved(Workbook()))


def test_json_names_every_value(read: Read) -> None:
    value = {
        "pump": {"name": "P-101", "pressure": 1.10, "tags": ["feed", "hot"], "spare": None},
        "valves": [{"id": 7, "open": False}, {"id": 8, "state": {"open": True}}],
    }
    source = json.dumps(value).replace("1.1", "1.10")
    assert read("a.json", source.encode()).text == (
        "pump.name: P-101\npump.pressure: 1.10\npump.tags: feed, hot\n\nvalves:\nid: 7 | open: false\n"
        "id: 8 | state.open: true"
    )


def test_a_list_and_json_lines_are_records_and_long_ones_paragraphs(read: Read) -> None:
    records = [{"id": 1, "text": "short"}, {"id": 2, "text": "first line\nsecond line"}]
    expected = "id: 1 | text: short\n\nid: 2\ntext: first line\nsecond line"
    assert read("a.json", json.dumps(records).encode()).text == expected
    assert read("a.jsonl", "\n\n".join(map(json.dumps, records)).encode()).text == expected


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", b'{"a": 1,}', "line 1"),
        ("a.jsonl", b'{"a": 1}\n\n{"a": ', "line 3"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.json", b"[" * 500 + b'{"a": 1}' + b"]" * 500, "nested too deeply"),
    ],
)
def test_json_that_cannot_be_read_says_where(read: Read, name: str, content: bytes, says: str) -> None:
    with pytest.raises(InvalidDocumentError, match=says):
        read(name, content)


def test_source_code_keeps_its_lines_and_has_no_headings(read: Read) -> None:
    source = "# Start of the pump\ndef start(bar: int) -> None:\n    if bar > 12:\n        raise ValueError\n"
    extracted = read("pump.py", source.encode())
    assert extracted.text == source.strip()
    assert (extracted.title, extracted.headings) == ("", [])
    with pytest.raises(UnsupportedTypeError, match="not text"):
        read("pump.c", b"\x7fELF\x02\x01")
