"""Zip archives of documents: looked over before anything is unpacked."""

import zipfile
from pathlib import Path

from retriever.errors import InvalidDocumentError

MAX_UNPACKED_BYTES = 300 * 2**20
MAX_XML_BYTES = 50 * 2**20  # some 10,000 pages; a tree of XML takes many times its bytes
MAX_RATIO = 200  # unpacked to packed bytes; XML rarely passes 30
MAX_MEMBERS = 10_000
_XML = (".xml", ".rels", ".opf", ".xhtml", ".html", ".htm", ".vml")
_DTD_WITHIN = 1024  # bytes; a document type stands in front of the first element


def check_archive(path: Path, kind: str, needed: str) -> None:
    """Refuse what would unpack to far more than it is, what lacks the member `needed`, and XML that defines entities.

    `kind` names the type in messages: "Word document".
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, path.stat().st_size, kind, needed)
            if any(_defines_entities(archive, name) for name in archive.namelist() if name.endswith((".xml", ".rels"))):
                raise InvalidDocumentError(f"The {kind} defines entities of its own in its XML and was refused.")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise InvalidDocumentError(f"The {kind} is damaged: it is not a whole archive.") from error


def _check_members(archive: zipfile.ZipFile, packed: int, kind: str, needed: str) -> None:
    members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    xml = sum(member.file_size for member in members if member.filename.lower().endswith(_XML))
    too_dense = unpacked > 2**20 and unpacked > MAX_RATIO * max(packed, 1)
    if unpacked > MAX_UNPACKED_BYTES or xml > MAX_XML_BYTES or too_dense or len(members) > MAX_MEMBERS:
        raise InvalidDocumentError(f"The {kind} unpacks to far more than a document holds and was refused.")
    if not any(member.filename == needed for member in members):
        raise InvalidDocumentError(f"The archive is not a {kind}.")


def _defines_entities(archive: zipfile.ZipFile, name: str) -> bool:
    with archive.open(name) as member:
        return b"<!DOCTYPE" in member.read(_DTD_WITHIN).replace(b"\0", b"")  # UTF-16 has zeros between
