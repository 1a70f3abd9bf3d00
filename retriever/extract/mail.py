"""Mails (.eml), through the standard library's email package."""

import email
import email.policy
from collections.abc import Iterator
from email.message import MIMEPart
from pathlib import Path

from retriever.errors import InvalidDocumentError
from retriever.extract.html import visible_text
from retriever.extract.outline import assemble, bounded
from retriever.extract.plain import decode
from retriever.model import Extracted

_HEADERS = ("From", "To", "Cc", "Date", "Subject")


def extract(path: Path) -> Extracted:
    """The headers that a reader sees, then the text. Attachments are named in warnings; they are not read."""
    try:
        message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
        attachments = [_name(part) for part in message.walk() if _is_attachment(part)]
        text = _body(message)
    except RecursionError as error:
        raise InvalidDocumentError("The mail has too many parts inside one another.") from error
    headers = [f"{name}: {value}" for name in _HEADERS if (value := _header(message, name))]
    if not headers:
        raise InvalidDocumentError("The file is no mail: it has none of the headers From, To, Date and Subject.")
    warnings = [f"Attachment not read: {name}. Upload it by itself." for name in attachments]
    return assemble([bounded([*headers, "", text])], _header(message, "Subject"), warnings)


def _header(message: MIMEPart, name: str) -> str:
    """A header's text; as it is written where the standard library cannot make sense of it."""
    try:
        return ", ".join(" ".join(str(value).split()) for value in message.get_all(name, []))
    except (ValueError, IndexError, TypeError, AttributeError, LookupError):
        return ", ".join(" ".join(value.split()) for key, value in message.raw_items() if key.lower() == name.lower())


def _body(message: MIMEPart) -> str:
    """Every part of text in its order; of alternatives the plain one, unless it is empty."""
    return "\n\n".join(text for part in _parts(message) if (text := _text(part)).strip())


def _parts(message: MIMEPart) -> Iterator[MIMEPart]:
    if message.get_content_type() == "multipart/alternative":
        parts = [part for inner in message.iter_parts() for part in _parts(inner)]
        plain = [part for part in parts if part.get_content_type() == "text/plain" and _text(part).strip()]
        yield from plain or parts
    elif message.is_multipart() and message.get_content_type() != "message/rfc822":
        for part in message.iter_parts():
            yield from _parts(part)
    elif message.get_content_maintype() == "text" and not _is_attachment(message):
        yield message


def _text(part: MIMEPart) -> str:
    payload = part.get_payload(decode=True)
    data = payload if isinstance(payload, bytes) else b""
    try:
        text = data.decode(part.get_content_charset() or "utf-8")
    except (UnicodeDecodeError, LookupError):
        text, _ = decode(data)
    return visible_text(text) if part.get_content_subtype() == "html" else text


def _is_attachment(part: MIMEPart) -> bool:
    if part.get_content_type() == "message/rfc822":
        return True
    named = part.get_content_disposition() == "attachment" or bool(part.get_filename())
    return not part.is_multipart() and (named or part.get_content_maintype() != "text")


def _name(part: MIMEPart) -> str:
    return repr(part.get_filename() or "without a name") + f" ({part.get_content_type()})"
