"""Text as it is stored, names as they are shown, and types that are what they say."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever import InvalidDocumentError, UnsupportedTypeError
from retriever.extract import SNIFF_BYTES, check_type, extract
from retriever.extract.clean import clean, clean_filename
from retriever.extract.plain import decode


@given(st.text())
def test_clean_text_stays_clean_and_has_no_control_characters(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    assert not set(cleaned) & {"\0", "\r", "\f", "\x1b", "\ufeff"}
    cleaned.encode("utf-8")


def test_a_long_run_of_blanks_takes_no_time() -> None:
    started = time.monotonic()
    assert clean("a" + " " * 2_000_000 + "b") == "a" + " " * 2_000_000 + "b"
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("data", "text", "warned"),
    [
        ("naïve 日本語".encode(), "naïve 日本語", ""),
        ("\ufeffmarked".encode(), "marked", ""),
        ("breit – ö".encode("utf-16"), "breit – ö", ""),
        ("breit – ö".encode("utf-32"), "breit – ö", ""),
        ("Größe, Maß und Fuß".encode()[:-1] + b"\xff", "Größe, Maß und Fu\ufffd", "places"),
        ("Le café était fermé à cause de la grève. ".encode("cp1252") * 4, "Le café était fermé à", "was read as"),
        ("El niño comió piñas en la mañana. Señor. ".encode("cp1252"), "El niño comió piñas", "was read as"),
        ("これは日本語のテキストです。文字コードの検査。".encode("shift_jis"), "これは日本語の", "was read as"),
        (("Это проверка кодировки русского текста. " * 5).encode("cp1251"), "Это проверка кодировки", "was read as"),
    ],
)
def test_bytes_are_decoded_or_the_loss_is_named(data: bytes, text: str, warned: str) -> None:
    decoded, warnings = decode(data)
    assert decoded.startswith(text)
    assert bool(warnings) == bool(warned)
    assert warned in "".join(warnings)


@given(st.binary())
def test_any_bytes_decode_to_something(data: bytes) -> None:
    text, warnings = decode(data)
    if "\ufffd" in text:
        assert (
            warnings or "\ufffd".encode() in data or data[:2] in (b"\xff\xfe", b"\xfe\xff") or data[:2] == b"\x00\x00"
        )


@pytest.mark.parametrize(
    ("given_name", "shown"),
    [
        ("../../etc/passwd.txt", "passwd.txt"),
        ("C:\\Users\\me\\plan.md", "plan.md"),
        ("nul\0byte.txt", "nulbyte.txt"),
        ("cafe\u0301.txt", "caf\u00e9.txt"),
        ("report\u202efdp.txt", "reportfdp.txt"),
        ("🚀 launch.md", "🚀 launch.md"),
        ("תוכנית عمل.txt", "תוכנית عمل.txt"),
        ("a\nb.txt", "ab.txt"),
        ("x" * 500 + ".pdf", "x" * 200 + ".pdf"),
        ("..", ".."),
        ("", ""),
    ],
)
def test_names_are_data_to_show(given_name: str, shown: str) -> None:
    assert clean_filename(given_name) == shown


@pytest.mark.parametrize(
    ("name", "head", "says"),
    [
        ("a.exe", b"MZ", ".exe files"),
        ("no-suffix", b"text", "no suffix"),
        ("", b"text", "no suffix"),
        ("..", b"text", "no suffix"),
        ("report.pdf", b"\x89PNG\r\n\x1a\n", "not pdf"),
        ("report.docx", b"%PDF-1.7", "not docx"),
        ("old.docx", b"\xd0\xcf\x11\xe0\xa1\xb1", "password"),
        ("x.txt", b"PK\x03\x04rest", "not text"),
        ("x.md", b"%PDF-1.7", "not text"),
        ("x.html", b"\x00\x01\x02\x03" * 9, "not text"),
    ],
)
def test_a_wrong_type_is_refused_by_name_and_content(name: str, head: bytes, says: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=says):
        check_type(name, head)


def test_an_empty_file_is_refused_and_a_blank_beginning_is_not() -> None:
    for empty in (b"", b" \n\t "):
        with pytest.raises(InvalidDocumentError, match="empty"):
            check_type("a.txt", empty)
    check_type("a.txt", b"\n" * SNIFF_BYTES)
    check_type("A.PDF", b"junk in front of %PDF-1.4")


def test_a_markdown_heading_is_the_title(tmp_path: Path) -> None:
    path = tmp_path / "upload"
    path.write_bytes(b"\xef\xbb\xbf# The  *Pump*\r\n\r\nText.\r\n")
    extracted = extract(path, "a.md")
    assert extracted.title == "The *Pump*"
    assert extracted.text == "# The  *Pump*\n\nText."
    assert extracted.pages == [(0, len(extracted.text))]


def test_a_file_of_nothing_visible_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "upload"
    path.write_bytes(b"\n" * 9000)
    with pytest.raises(InvalidDocumentError, match="no text"):
        extract(path, "a.txt")
