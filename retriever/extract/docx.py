"""Word documents: paragraphs and tables in their order."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from docx import Document
from docx.opc.exceptions import PackageNotFoundError
from docx.table import Table

from retriever.errors import InvalidDocumentError
from retriever.extract.clean import clean
from retriever.model import Extracted

MAX_UNPACKED_BYTES = 300 * 2**20
MAX_RATIO = 200  # unpacked to packed bytes; XML rarely passes 30
MAX_MEMBERS = 10_000


def extract(path: Path) -> Extracted:
    """Paragraphs a line each, table rows with their cells between bars."""
    _check_archive(path)
    try:
        document = Document(str(path))
        lines = list(_lines(document))
        title = clean(document.core_properties.title or "").replace("\n", " ")[:200]
    except (PackageNotFoundError, KeyError, ValueError, zipfile.BadZipFile, SyntaxError) as error:
        raise InvalidDocumentError(
            "The Word document is damaged. Save it anew as .docx and upload it again."
        ) from error
    text = clean("\n".join(lines))
    return Extracted(text, [(0, len(text))], title, [])


def _check_archive(path: Path) -> None:
    """Refuse archives that would unpack to far more than they are, before anything is unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile as error:
        raise InvalidDocumentError("The Word document is damaged: it is not a whole archive.") from error
    unpacked = sum(member.file_size for member in members)
    packed = max(path.stat().st_size, 1)
    too_dense = unpacked > 2**20 and unpacked > MAX_RATIO * packed
    if unpacked > MAX_UNPACKED_BYTES or too_dense or len(members) > MAX_MEMBERS:
        raise InvalidDocumentError("The Word document unpacks to far more than a document holds and was refused.")
    if not any(member.filename == "word/document.xml" for member in members):
        raise InvalidDocumentError("The archive is not a Word document.")


def _lines(document: "Document") -> Iterator[str]:  # type: ignore[valid-type]
    for block in document.iter_inner_content():  # type: ignore[attr-defined]
        if isinstance(block, Table):
            yield ""
            for row in block.rows:
                yield " | ".join(cell.text.replace("\n", " ").strip() for cell in row.cells)
            yield ""
        else:
            yield block.text
            if block.style is not None and str(block.style.name).startswith("Heading"):
                yield ""
