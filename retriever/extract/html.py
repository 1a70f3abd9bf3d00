"""HTML: the main text of the page."""

from pathlib import Path

import trafilatura
from lxml import html as lxml_html

from retriever.errors import InvalidDocumentError
from retriever.extract.clean import clean
from retriever.extract.plain import decode
from retriever.model import Extracted

_UNSEEN = ("script", "style", "noscript", "template", "head")


def extract(path: Path) -> Extracted:
    """The main text; all visible text when the page has no main part."""
    source, warnings = decode(path.read_bytes())
    try:
        tree = lxml_html.document_fromstring(source.encode("utf-8"), parser=lxml_html.HTMLParser(encoding="utf-8"))
    except (ValueError, lxml_html.etree.ParserError) as error:
        raise InvalidDocumentError("The page holds no HTML that can be read.") from error
    title = clean(tree.findtext(".//title") or "").replace("\n", " ")[:200]
    main = trafilatura.extract(source, output_format="txt", include_tables=True, include_comments=False)
    text = clean(main or _visible(tree))
    return Extracted(text, [(0, len(text))], title, warnings)


def _visible(tree: lxml_html.HtmlElement) -> str:
    for element in list(tree.iter(*_UNSEEN)):
        element.drop_tree()
    return "\n".join(str(piece).strip() for piece in tree.itertext() if str(piece).strip())
