"""Presentations, books, mails and the parts of Word files beside their text; headings become paths of passages."""

import io
import zipfile
from collections.abc import Callable
from email.message import EmailMessage

import docx
import pytest
from docx.opc.constants import CONTENT_TYPE, RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from retriever import Extracted, InvalidDocumentError
from retriever.chunk import chunk

Read = Callable[[str, bytes], Extracted]
BOX = (Inches(1), Inches(1), Inches(4), Inches(2))


def saved(document: object) -> bytes:
    stream = io.BytesIO()
    document.save(stream)  # type: ignore[attr-defined]
    return stream.getvalue()


def packed(members: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def words(text: str) -> int:
    return len(text.split())


def sections(extracted: Extracted, limit: int) -> list[tuple[str, str]]:
    return [(span.section, extracted.text[span.start : span.end]) for span in chunk(extracted, words, limit)]


def test_slides_are_pages_with_tables_charts_and_notes(read: Read) -> None:
    presentation = Presentation()
    first, hidden, third = (presentation.slides.add_slide(presentation.slide_layouts[5]) for _ in range(3))
    first.shapes.title.text = "Pumps"
    group = first.shapes.add_group_shape()
    group.shapes.add_textbox(*BOX).text_frame.text = "Feed pump\vP-101"
    table = first.shapes.add_table(2, 2, *BOX).table
    for number, text in enumerate(("Part", "Torque", "M8", "25 Nm")):
        table.cell(number // 2, number % 2).text = text
    first.notes_slide.notes_text_frame.text = "Mention the seals."
    hidden.shapes.title.text = "Not for you"
    hidden.element.set("show", "0")
    data = CategoryChartData()
    data.categories = ["East", "West"]
    data.add_series("Sales", (1.5, 2))
    third.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *BOX, data)
    extracted = read("a.pptx", saved(presentation))
    pages = [extracted.text[start:end] for start, end in extracted.pages]
    assert pages == [
        "Pumps\n\nFeed pump\nP-101\n\nPart | Torque\nM8 | 25 Nm\n\nNotes: Mention the seals.",
        "",
        "| Sales\nEast | 1.5\nWest | 2",
    ]
    assert extracted.warnings == ["Not read, because it is hidden: slide 2."]


def test_word_headers_footers_and_notes_come_once(read: Read) -> None:
    document = docx.Document()
    document.add_heading("Torques", 1)
    paragraph = document.add_paragraph("Tighten to 25 Nm")
    paragraph._p.append(parse_xml(f'<w:r {nsdecls("w")}><w:footnoteReference w:id="2"/></w:r>'))
    document.add_paragraph("Then check.")
    document.sections[0].header.paragraphs[0].text = "Plant North"
    document.sections[0].footer.paragraphs[0].text = "1"
    document.add_section().footer.is_linked_to_previous = False
    document.sections[1].footer.paragraphs[0].text = "Confidential"
    notes = (
        f'<w:footnotes {nsdecls("w")}><w:footnote w:id="0" w:type="separator"><w:p/></w:footnote>'
        '<w:footnote w:id="2"><w:p><w:r><w:t>With dry threads.</w:t></w:r></w:p></w:footnote></w:footnotes>'
    )
    part = Part(PackURI("/word/footnotes.xml"), CONTENT_TYPE.WML_FOOTNOTES, notes.encode(), document.part.package)
    document.part.relate_to(part, RELATIONSHIP_TYPE.FOOTNOTES)
    extracted = read("a.docx", saved(document))
    assert extracted.text == (
        "Plant North\n\nTorques\n\nTighten to 25 Nm[1]\n[1] With dry threads.\nThen check.\n\nConfidential"
    )
    assert [(heading.level, heading.title) for heading in extracted.headings] == [(1, "Torques")]


def book(chapter: str, **more: str) -> bytes:
    container = '<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        "<dc:title>The sea</dc:title></metadata><manifest>"
        '<item id="b" href="b.xhtml" media-type="application/xhtml+xml"/>'
        '<item id="a" href="text/a%20b.xhtml" media-type="application/xhtml+xml"/></manifest>'
        '<spine><itemref idref="a"/><itemref idref="b"/></spine></package>'
    )
    members = {"META-INF/container.xml": container, "OPS/book.opf": package, "OPS/text/a b.xhtml": chapter}
    return packed(members | {name.replace("_", "/"): content for name, content in more.items()})


def test_the_chapters_of_a_book_come_in_the_order_of_its_spine(read: Read) -> None:
    first = '<?xml version="1.0" encoding="utf-8"?><html><body><h1>Départ</h1><p>We left.</p></body></html>'
    extracted = read("a.epub", book(first, **{"OPS_b.xhtml": "<html><body><h1>Two</h1><p>We came.</p></body></html>"}))
    assert [extracted.text[start:end] for start, end in extracted.pages] == ["Départ\n\nWe left.", "Two\n\nWe came."]
    assert (extracted.title, extracted.warnings) == ("The sea", [])
    assert read("a.epub", book(first)).warnings == ["Part of the book that is missing: 'OPS/b.xhtml'."]


def test_entities_of_a_document_are_not_read(read: Read) -> None:
    evil = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><html><body><p>Text &a;</p></body></html>'
    assert "root:" not in read("a.epub", book(evil)).text
    with pytest.raises(InvalidDocumentError, match="entities"):
        read("a.epub", packed({"META-INF/container.xml": evil}))
    with pytest.raises(InvalidDocumentError, match="entities"):
        read("a.docx", packed({"word/document.xml": evil}))


def test_an_encrypted_book_says_so(read: Read) -> None:
    reference = '<encryption><CipherReference URI="OPS/text/a%20b.xhtml"/></encryption>'
    with pytest.raises(InvalidDocumentError, match="DRM"):
        read("a.epub", book("<p>x</p>", **{"META-INF_encryption.xml": reference}))


def test_a_mail_has_its_headers_and_text_and_names_its_attachments(read: Read) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"] = "Åsa <asa@example.org>", "ops@example.org"
    mail["Subject"], mail["Date"] = "Pumpe läuft", "Tue, 01 Dec 2026 10:00:00 +0100"
    mail.set_content("It runs at 12 bar.\n")
    mail.add_alternative("<p>It runs at <b>12</b> bar.</p>", subtype="html")
    mail.add_attachment(b"%PDF-1.7", maintype="application", subtype="pdf", filename="Prüfung.pdf")
    extracted = read("a.eml", mail.as_bytes())
    assert extracted.text == (
        "From: Åsa <asa@example.org>\nTo: ops@example.org\nDate: Tue, 01 Dec 2026 10:00:00 +0100\n"
        "Subject: Pumpe läuft\n\nIt runs at 12 bar."
    )
    assert extracted.title == "Pumpe läuft"
    assert extracted.warnings == ["Attachment not read: 'Prüfung.pdf' (application/pdf). Upload it by itself."]


def test_mails_of_html_of_unknown_letters_and_files_that_are_none(read: Read) -> None:
    page = b"From: a@example.org\nContent-Type: text/html; charset=nonsense\n\n<p>Only <b>this</b></p>"
    assert read("a.eml", page).text == "From: a@example.org\n\nOnly this"
    with pytest.raises(InvalidDocumentError, match="no mail"):
        read("a.eml", b"just some text")


def test_headings_become_the_path_of_their_passages(read: Read) -> None:
    source = (
        "# Book\n\nIntro.\n\n## Pumps\n\n" + "pump " * 34 + "\n\n## Valves\n\n```\n# no heading\n```\n" + "valve " * 25
    )
    found = sections(read("a.md", source.encode()), 36)
    assert [section for section, _ in found] == ["Book", "Book › Pumps", "Book › Valves"]
    assert found[2][1].startswith("## Valves")


def test_small_sections_share_a_passage_under_what_they_share(read: Read) -> None:
    page = "<h1>Book</h1><h2>Pumps</h2><p>One.</p><h2>Valves</h2><p>Two.</p><h1>Other</h1><p>Three.</p>"
    assert sections(read("a.html", page.encode()), 6) == [
        ("Book", "Book\n\nPumps\n\nOne.\n\nValves\n\nTwo."),
        ("Other", "Other\n\nThree."),
    ]


def test_a_heading_with_nothing_below_it_begins_the_section_that_follows(read: Read) -> None:
    page = "# Book\n\n## Pumps\n\n### Feed\n\nOne two.\n\n## Valves\n\nThree four."
    assert sections(read("a.md", page.encode()), 8) == [
        ("Book › Pumps › Feed", "# Book\n\n## Pumps\n\n### Feed\n\nOne two."),
        ("Book › Valves", "## Valves\n\nThree four."),
    ]


def test_rows_of_a_large_table_in_a_page_name_their_columns(read: Read) -> None:
    rows = "".join(f"<tr><td>M{i}</td><td colspan=2>{i} Nm</td></tr>" for i in range(80))
    page = f"<p>Torques</p><table><tr><th>Part</th><th>Dry</th><th>Oiled</th></tr>{rows}</table><p>After</p>"
    text = read("a.html", page.encode()).text
    assert "\nPart: M79 | Dry: 79 Nm | Oiled: 79 Nm\n\nAfter" in text
