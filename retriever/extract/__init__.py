"""Files to text. The type is decided by the name and by the content together: a wrong type behind a right name is
refused.
"""

from collections.abc import Callable
from pathlib import Path

from retriever.errors import InvalidDocumentError, UnsupportedTypeError
from retriever.extract import delimited, docx, epub, html, mail, pdf, plain, sheets, slides, structured
from retriever.extract.outline import MAX_TEXT_CHARS, too_long
from retriever.model import Extracted

Extractor = Callable[[Path], Extracted]
OnPage = Callable[[float], None]

_EXTRACTORS: dict[str, Extractor] = {
    **{f".{suffix}": plain.extract_code for suffix in plain.CODE},
    ".txt": plain.extract,
    ".text": plain.extract,
    ".md": plain.extract_markdown,
    ".markdown": plain.extract_markdown,
    ".html": html.extract,
    ".htm": html.extract,
    ".xhtml": html.extract,
    ".docx": docx.extract,
    ".pptx": slides.extract,
    ".xlsx": sheets.extract,
    ".csv": delimited.extract_csv,
    ".tsv": delimited.extract_tsv,
    ".json": structured.extract_json,
    ".jsonl": structured.extract_jsonl,
    ".ndjson": structured.extract_jsonl,
    ".epub": epub.extract,
    ".eml": mail.extract,
}
SUFFIXES = frozenset((".pdf", *_EXTRACTORS))
_ZIP = b"PK\x03\x04"
_OFFICE = {".docx": ".doc", ".pptx": ".ppt", ".xlsx": ".xls"}
_SIGNATURES = {".pdf": b"%PDF-", ".epub": _ZIP, **dict.fromkeys(_OFFICE, _ZIP)}
_OLE = b"\xd0\xcf\x11\xe0"  # what old office files and encrypted new ones begin with
SNIFF_BYTES = 4096  # as many first bytes as `check_type` needs


def check_type(filename: str, head: bytes) -> None:
    """Raise UnsupportedTypeError or InvalidDocumentError when the first bytes `head` cannot be what the name says."""
    suffix = suffix_of(filename)
    if suffix not in SUFFIXES:
        reason = f"{suffix} files are not supported" if suffix else "its name has no suffix that says its type"
        raise UnsupportedTypeError(filename, reason)
    if not head.strip() and len(head) < SNIFF_BYTES:
        raise InvalidDocumentError(f"{filename!r} is empty.")
    if suffix in _OFFICE and head.startswith(_OLE):
        reason = f"it is an old {_OFFICE[suffix]} or has a password; save it as {suffix} without one"
        raise UnsupportedTypeError(filename, reason)
    signature = _SIGNATURES.get(suffix)
    if signature is not None:
        window = head[:1024] if suffix == ".pdf" else head[: len(signature)]  # PDF allows bytes in front
        if signature not in window:
            raise UnsupportedTypeError(filename, f"its content is not {suffix.removeprefix('.')}")
    elif _looks_binary(head):
        raise UnsupportedTypeError(filename, "its content is not text")


def suffix_of(filename: str) -> str:
    """The lower-case suffix of a file name, with its dot."""
    return Path(filename).suffix.casefold()


def extract(path: Path, filename: str, on_page: OnPage = lambda done: None) -> Extracted:
    """The text of the file at `path`, which was uploaded as `filename`. InvalidDocumentError, UnsupportedTypeError.

    `on_page` is called after each page of a PDF with the share that is done.
    """
    with path.open("rb") as file:
        check_type(filename, file.read(SNIFF_BYTES))
    suffix = suffix_of(filename)
    extracted = pdf.extract(path, on_page) if suffix == ".pdf" else _EXTRACTORS[suffix](path)
    if len(extracted.text) > MAX_TEXT_CHARS:
        raise too_long()
    if not any(character.isprintable() and not character.isspace() for character in extracted.text):
        raise InvalidDocumentError("The document holds no text.")
    return extracted


def _looks_binary(head: bytes) -> bool:
    """Known binary signatures, or many control bytes, unless a byte order mark says UTF-16 or UTF-32."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")):
        return False
    if head.startswith((b"%PDF-", b"PK\x03\x04", b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"\x7fELF", b"\x1f\x8b")):
        return True
    control = sum(byte < 9 or 13 < byte < 32 for byte in head)
    return control > len(head) // 20
