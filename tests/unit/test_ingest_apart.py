"""Reading in a process apart: limits hold, a crash is a message, and what stops the work ends the process."""

import io
import os
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

import docx
import psutil
import pytest
from fpdf import FPDF

from retriever import InvalidDocumentError
from retriever.extract import apart, extract, worker
from retriever.extract.apart import ApartReader


@pytest.fixture
def reader() -> Iterator[ApartReader]:
    reader = ApartReader()
    yield reader
    reader.close()
    assert children() == []


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "retriever.extract.worker" in child.cmdline()]


def saved(folder: Path, content: bytes) -> Path:
    path = folder / "upload"
    path.write_bytes(content)
    return path


def nothing(done: float) -> None:
    pass


def test_it_reads_as_the_process_itself_would_with_one_process_for_all(reader: ApartReader, tmp_path: Path) -> None:
    path = saved(tmp_path, "# Größe 水\n\n## Zwei\n\nText\u2028here".encode())
    found = reader.read(path, "ä水.md", nothing)
    assert found == extract(path, "ä水.md")
    assert len(found.headings) == 2
    [first] = children()
    assert reader.read(path, "b.txt", nothing) == extract(path, "b.txt")
    assert children() == [first]


def test_what_is_refused_says_why_and_the_next_file_is_read(reader: ApartReader, tmp_path: Path) -> None:
    with pytest.raises(InvalidDocumentError, match="damaged and cannot be opened"):
        reader.read(saved(tmp_path, b"%PDF-1.7 nothing"), "a.pdf", nothing)
    assert reader.read(saved(tmp_path, b"text"), "a.txt", nothing).text == "text"


def test_progress_comes_page_by_page(reader: ApartReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "POLL_S", 0.0)
    document = FPDF()
    document.set_font("helvetica", size=12)
    for page in range(4):
        document.add_page()
        document.cell(text=f"Page {page}")
    shares: list[float] = []
    reader.read(saved(tmp_path, bytes(document.output())), "a.pdf", shares.append)
    assert [share for share in dict.fromkeys(shares) if share] == [0.25, 0.5, 0.75, 1.0]


def test_a_file_that_takes_too_much_memory_is_refused(
    reader: ApartReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = b"".join(b"<w:p><w:r><w:t>%d</w:t></w:r></w:p>" % i for i in range(400_000))
    stream = io.BytesIO()
    docx.Document().save(stream)
    target = io.BytesIO()
    with zipfile.ZipFile(stream) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"<w:sectPr", many + b"<w:sectPr", 1))
    path = saved(tmp_path, target.getvalue())
    with monkeypatch.context() as patch:
        patch.setattr(apart, "MEMORY_BYTES", 450 * 2**20)
        with pytest.raises(InvalidDocumentError, match="more memory"):
            reader.read(path, "a.docx", nothing)
    assert children() == []
    assert reader.read(saved(tmp_path, b"text"), "a.txt", nothing).text == "text"


def test_a_file_that_takes_too_long_is_refused(
    reader: ApartReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = "".join(f"<table><tr><td>{i}</td></tr></table>" for i in range(300_000))  # a minute for its reader
    with monkeypatch.context() as patch:
        patch.setattr(apart, "TIME_S", 2)
        with pytest.raises(InvalidDocumentError, match="took more than"):
            reader.read(saved(tmp_path, endless.encode()), "a.html", nothing)
    assert children() == []
    assert reader.read(saved(tmp_path, b"text"), "a.txt", nothing).text == "text"


def test_a_crash_is_a_message_and_a_process_that_died_between_files_is_replaced(
    reader: ApartReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, b"text")

    def kill(done: float) -> None:
        for child in children():
            child.send_signal(signal.SIGSEGV)

    monkeypatch.setattr(apart, "POLL_S", 0.01)  # the process is killed while it still starts
    with pytest.raises(InvalidDocumentError, match="could not be read"):
        reader.read(path, "a.txt", kill)
    assert reader.read(path, "a.txt", nothing).text == "text"
    [child] = children()
    child.kill()
    child.wait()
    assert reader.read(path, "a.txt", nothing).text == "text"


def test_what_stops_the_work_ends_the_process(
    reader: ApartReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(apart, "POLL_S", 0.01)
    with pytest.raises(KeyboardInterrupt):
        reader.read(saved(tmp_path, b"text"), "a.txt", stop)
    assert children() == []


def test_an_error_that_nobody_expected_is_told_and_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(worker, "extract", broken)
    assert "RecursionError" in worker.answer(tmp_path, "a.txt", lambda line: None)["broken"]


def test_the_process_knows_no_secrets(reader: ApartReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "SNAPRAG_API_KEYS", "secret")
    reader.read(saved(tmp_path, b"text"), "a.txt", nothing)
    [child] = children()
    assert "SNAPRAG_API_KEYS" not in child.environ()
