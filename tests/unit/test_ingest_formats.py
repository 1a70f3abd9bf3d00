"""HTML, PDF and Word files: what they hold comes out in order, and what cannot be read says why."""

import io
import zipfile
from collections.abc import Callable

import docx
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from fpdf import FPDF

from retriever import Extracted, InvalidDocumentError, UnsupportedTypeError
from retriever.extract import archive

Read = Callable[[str, bytes], Extracted]


def pdf(*pages: str, title: str = "", password: str = "") -> bytes:
    document = FPDF()
    document.set_font("helvetica", size=12)
    if title:
        document.set_title(title)
    if password:
        document.set_encryption(owner_password="owner", user_password=password)
    for page in pages:
        document.add_page()
        document.multi_cell(0, 6, page)
    return bytes(document.output())


def saved(document: object) -> bytes:
    stream = io.BytesIO()
    document.save(stream)  # type: ignore[attr-defined]
    return stream.getvalue()


def repacked(source: bytes, changes: dict[str, bytes], *, without: str = "") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(source)) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            if name != without:
                new.writestr(name, changes.pop(name, old.read(name)))
        for name, content in changes.items():
            new.writestr(name, content)
    return stream.getvalue()


def test_printed_page_numbers_are_not_text(read: Read) -> None:
    assert read("a.pdf", pdf("First page.\n1", "2\nSecond page of 2")).text == "First page.\n\nSecond page of 2"


def test_pdf_pages_keep_their_numbers_and_offsets(read: Read) -> None:
    extracted = read("a.pdf", pdf("First page.", "", "Third page.\nSecond line.", title="Hand\nbook"))
    first, _, third = (extracted.text[start:end] for start, end in extracted.pages)
    assert first == "First page."
    assert third == "Third page.\nSecond line."
    assert extracted.title == "Hand book"
    assert extracted.warnings == ["No text layer on page 2: nothing of it can be found."]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (pdf("", "", ""), r"text layer \(3 pages\).*OCR"),
        (pdf("secret", password="pw"), "encrypted"),
        (pdf("cut off in the middle")[:200], "damaged"),
        (b"%PDF-1.7\nnothing else", "damaged"),
        (b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[]/Count 0>>endobj\n"
         b"trailer<</Root 1 0 R>>", "no pages|damaged"),
    ],
    ids=["scan", "password", "cut", "no-body", "no-pages"],
)  # fmt: skip
def test_a_pdf_that_cannot_be_used_says_why(read: Read, content: bytes, says: str) -> None:
    with pytest.raises(InvalidDocumentError, match=says):
        read("a.pdf", content)


def test_word_paragraphs_and_tables_come_in_their_order(read: Read) -> None:
    document = docx.Document()
    document.core_properties.title = "Handbook"
    document.add_heading("Torques", 1)
    document.add_paragraph("Before\tthe table")
    table = document.add_table(2, 3)
    for number, cell in enumerate(cell for row in table.rows for cell in row.cells):
        cell.text = f"c{number}"
    table.cell(0, 0).merge(table.cell(0, 1))
    table.cell(1, 1).add_table(1, 1).cell(0, 0).text = "inner"
    document.add_paragraph("After")
    extracted = read("a.docx", saved(document))
    assert extracted.title == "Handbook"
    assert extracted.text == "Torques\n\nBefore\tthe table\n\nc0 c1 | c2\nc3 | c4 inner | c5\n\nAfter"


def test_word_insertions_and_content_controls_are_read_and_deletions_are_not(read: Read) -> None:
    document = docx.Document()
    body = document.element.body
    names = nsdecls("w")
    body.insert(
        0, parse_xml(f"<w:sdt {names}><w:sdtContent><w:p><w:r><w:t>kept</w:t></w:r></w:p></w:sdtContent></w:sdt>")
    )
    changed = (
        f"<w:p {names}><w:pPr><w:tabs><w:tab w:val='left' w:pos='9'/></w:tabs></w:pPr><w:ins><w:r><w:t>new</w:t></w:r>"
        "</w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del><w:r><w:br/><w:t>line</w:t></w:r></w:p>"
    )
    body.insert(1, parse_xml(changed))
    assert read("a.docx", saved(document)).text == "kept\nnew\nline"


def test_a_long_word_document_takes_no_minutes(read: Read) -> None:
    source = saved(docx.Document())
    with zipfile.ZipFile(io.BytesIO(source)) as archive:
        xml = archive.read("word/document.xml")
    many = b"".join(b"<w:p><w:r><w:t>Paragraph %d of the book.</w:t></w:r></w:p>" % i for i in range(20_000))
    extracted = read(
        "a.docx", repacked(source, {"word/document.xml": xml.replace(b"<w:sectPr", many + b"<w:sectPr", 1)})
    )
    assert extracted.text.endswith("Paragraph 19999 of the book.")


def test_archives_that_are_no_document_are_refused(read: Read) -> None:
    source = saved(docx.Document())
    bomb = repacked(source, {"word/media/image1.png": b"\0" * 20_000_000})
    with pytest.raises(InvalidDocumentError, match="unpacks to far more"):
        read("a.docx", bomb)
    with pytest.raises(InvalidDocumentError, match="not a Word document"):
        read("a.docx", repacked(source, {}, without="word/document.xml"))
    with pytest.raises(InvalidDocumentError, match="damaged"):
        read("a.docx", source[: len(source) // 2])
    with pytest.raises(InvalidDocumentError, match="damaged"):
        read("a.docx", repacked(source, {"word/document.xml": b"<w:document"}))


def test_too_much_xml_is_refused_before_it_is_parsed(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_XML_BYTES", 1000)
    with pytest.raises(InvalidDocumentError, match="unpacks to far more"):
        read("a.docx", saved(docx.Document()))


def test_html_keeps_headings_lists_and_tables_and_drops_what_is_not_text(read: Read) -> None:
    page = """<!doctype html><html><head><title> The
      handbook</title><style>p{}</style></head><body><nav><a href="/">Home</a></nav><h1>Pumps</h1>
      <p>Runs at <b>12&nbsp;bar</b>,<br>not more.<!-- hidden --></p><script>alert(1)</script>
      <table><tr><th>Part</th><th>Torque</th></tr><tr><td>M8</td><td>25 Nm</td></tr></table>
      <ul><li>one</li><li>two</li></ul><pre>a = 1
  b = 2</pre><footer>Imprint</footer></body></html>"""
    extracted = read("a.html", page.encode())
    assert extracted.title == "The handbook"
    assert extracted.text == (
        "Pumps\n\nRuns at 12\u00a0bar,\nnot more.\n\nPart | Torque\nM8 | 25 Nm\n\none\ntwo\n\na = 1\n  b = 2"
    )
    assert extracted.warnings == []


def test_html_of_a_page_that_is_mostly_something_else_keeps_the_main_part_and_says_so(read: Read) -> None:
    links = "".join(f"<div><a href='/{i}'>Another story number {i} that you may like</a></div>" for i in range(80))
    story = "".join(
        f"<p>The council decided on point {i}, after a long debate in the old town hall.</p>" for i in range(9)
    )
    extracted = read("a.html", f"<html><body><div>{links}</div><article>{story}</article></body></html>".encode())
    assert "point 8" in extracted.text
    assert "number 40" not in extracted.text
    assert "Only the main part" in extracted.warnings[0]


def test_html_without_text_or_markup(read: Read) -> None:
    assert read("a.html", b"plain words").text == "plain words"
    with pytest.raises(InvalidDocumentError):
        read("a.html", b"<html><script>1</script></html>")
    with pytest.raises(InvalidDocumentError):
        read("a.html", b"<!-- nothing -->")
    with pytest.raises(UnsupportedTypeError):
        read("a.html", b"\x89PNG\r\n")


@pytest.mark.parametrize("levels", [260, 1500])
def test_html_that_is_nested_deeply_keeps_its_text(read: Read, levels: int) -> None:
    steps = "".join(f"<div><p>Step {level} of the ladder is painted green.</p>" for level in range(levels))
    extracted = read("a.html", f"<html><body>{steps}<p>The code is 60606.</p></body></html>".encode())
    assert "Step 0 of" in extracted.text
    assert "The code is 60606." in extracted.text
    assert extracted.warnings == []


def test_html_that_is_nested_too_deeply_says_so(read: Read) -> None:
    extracted = read("a.html", b"<p>Start.</p>" + b"<div>" * 3000 + b"<p>The code is 60606.</p>")
    assert "Start." in extracted.text
    assert extracted.warnings == ["The page is nested too deeply; what lies deepest was not read."]


def test_text_of_nothing_that_can_be_seen_is_no_text(read: Read) -> None:
    with pytest.raises(InvalidDocumentError, match="no text"):
        read("a.txt", "\u200b\u200b \u2060\n".encode())
