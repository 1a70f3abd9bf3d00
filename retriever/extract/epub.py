"""Electronic books (.epub): an archive of XHTML files and a list that says their order. A page for each of them."""

import posixpath
import zipfile
from pathlib import Path
from urllib.parse import unquote

from lxml import etree

from retriever.errors import InvalidDocumentError
from retriever.extract.archive import check_archive
from retriever.extract.html import visible_text
from retriever.extract.outline import assemble
from retriever.extract.plain import decode
from retriever.model import Extracted

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"


def extract(path: Path) -> Extracted:
    """The files of the book's spine in their order, headings and tables kept."""
    check_archive(path, "book", _CONTAINER)
    try:
        with zipfile.ZipFile(path) as archive:
            package = _package(archive)
            tree = _xml(archive.read(package))
            names = _spine(tree, posixpath.dirname(package))
            held = set(archive.namelist())
            missing = [name for name in names if name not in held]
            if _ENCRYPTION in held and _has_encrypted_text(archive, names):
                raise InvalidDocumentError("The book is encrypted (DRM). Upload a copy without it.")
            pages = [visible_text(decode(archive.read(name))[0]) for name in names if name in held]
    except (KeyError, ValueError, zipfile.BadZipFile, etree.XMLSyntaxError) as error:
        raise InvalidDocumentError("The book is damaged: what lists its parts cannot be read.") from error
    title = tree.findtext(".//{*}metadata/{http://purl.org/dc/elements/1.1/}title") or ""
    return assemble(pages, title, [f"Part of the book that is missing: {name!r}." for name in missing])


def _xml(data: bytes) -> etree._Element:
    return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False))


def _package(archive: zipfile.ZipFile) -> str:
    """The path of the file that describes the book."""
    found = _xml(archive.read(_CONTAINER)).find(".//{*}rootfile")
    if found is None:
        raise ValueError("no root file")
    return str(found.get("full-path", ""))


def _spine(package: etree._Element, folder: str) -> list[str]:
    """Names of the members to be read, in the order of reading, each once."""
    items = {item.get("id"): item for item in package.iterfind(".//{*}manifest/{*}item")}
    listed = (items.get(reference.get("idref")) for reference in package.iterfind(".//{*}spine/{*}itemref"))
    texts = (item for item in listed if item is not None and "html" in str(item.get("media-type")))
    hrefs = (unquote(str(item.get("href", ""))).split("#")[0] for item in texts)
    return list(dict.fromkeys(posixpath.normpath(posixpath.join(folder, href)) for href in hrefs))


def _has_encrypted_text(archive: zipfile.ZipFile, names: list[str]) -> bool:
    """Fonts may be obfuscated in a book that anybody can read."""
    references = _xml(archive.read(_ENCRYPTION)).iterfind(".//{*}CipherReference")
    return bool({unquote(str(reference.get("URI"))) for reference in references} & set(names))
