"""HTML: the text of the page, without what surrounds it."""

import re
from pathlib import Path

import trafilatura
from lxml import etree
from lxml import html as lxml_html

from retriever.errors import InvalidDocumentError
from retriever.extract.clean import clean, clean_title
from retriever.extract.outline import assemble, heading
from retriever.extract.plain import decode
from retriever.extract.tables import SMALL_BYTES, table_lines
from retriever.model import Extracted

MAX_BYTES = 20 * 2**20  # the tree of a page takes many times its bytes
MAX_WEB_PAGE_CHARS = 2**20  # longer ones are documents: all is text, and finding a main part takes minutes
MAX_WEB_PAGE_DEPTH = 200  # deeper ones are cut short by the parser that finds the main part
_MAIN_SHARE = 0.5  # a main part smaller than this share of the text is worth cutting out
_UNSEEN = ("script", "style", "noscript", "template", "head", "nav", "footer", "aside", "svg", "select", "button")
_BLOCKS = frozenset(
    "address article blockquote body caption div dl figcaption figure form h1 h2 h3 h4 h5 h6 header hr main ol p pre "
    "section table ul".split()
)
_LINES = frozenset(("br", "dd", "dt", "li", "tr"))  # one line each, without an empty line between
_HEADINGS = frozenset(f"h{level}" for level in range(1, 7))
_MAX_SPAN = 50  # columns that one cell is repeated over
_BLANKS = re.compile(r"[ \t\r\n\f]+")


def extract(path: Path) -> Extracted:
    """All visible text, table rows with their cells between bars; the main part alone, with a warning, of a page that
    is mostly something else.
    """
    if path.stat().st_size > MAX_BYTES:
        raise InvalidDocumentError(f"The page has more than {MAX_BYTES // 2**20} MiB. Upload its text as txt.")
    source, warnings = decode(path.read_bytes())
    parser, tree = _parsed(source)
    title = clean_title(tree.findtext(".//title"))
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log):
        warnings = [*warnings, "The page is nested too deeply; what lies deepest was not read."]
    main = _main(source) if _depth(tree) <= MAX_WEB_PAGE_DEPTH else ""
    extracted = assemble([_visible(tree)], title, warnings)
    if main and len(main) < _MAIN_SHARE * len(extracted.text):
        cut = f"Only the main part of the page was read, {len(main)} of {len(extracted.text)} characters."
        return assemble([main], title, [*warnings, cut])
    return extracted


def visible_text(source: str) -> str:
    """All visible text of a page that is part of a document, its headings marked; nothing where there is no HTML."""
    try:
        return _visible(_parsed(source)[1])
    except InvalidDocumentError:
        return ""


def _parsed(source: str) -> tuple[lxml_html.HTMLParser, lxml_html.HtmlElement]:
    parser = lxml_html.HTMLParser(encoding="utf-8", huge_tree=True)
    try:
        return parser, lxml_html.document_fromstring(source.encode("utf-8"), parser=parser)
    except (ValueError, etree.ParserError) as error:
        raise InvalidDocumentError("The page holds no HTML that can be read.") from error


def _main(source: str) -> str:
    """What an article extractor takes for the main text. It drops headings, lists and tables of short pages."""
    if len(source) > MAX_WEB_PAGE_CHARS:
        return ""
    return clean(trafilatura.extract(source, output_format="txt", include_tables=True, include_comments=False) or "")


def _depth(tree: lxml_html.HtmlElement) -> int:
    deepest = depth = 0
    for event, _ in etree.iterwalk(tree, events=("start", "end")):
        depth += 1 if event == "start" else -1
        deepest = max(deepest, depth)
    return deepest


def _visible(tree: lxml_html.HtmlElement) -> str:
    etree.strip_tags(tree, etree.Comment, etree.ProcessingInstruction)
    etree.strip_elements(tree, *_UNSEEN, with_tail=False)
    for element in tree.iter(*_HEADINGS):
        _mark_heading(element)
    for table in tree.iter("table"):
        _label_rows(table)
    pieces, pre = ["\n"], 0
    for event, element in etree.iterwalk(tree, events=("start", "end")):
        pre += (element.tag == "pre") * (1 if event == "start" else -1)
        pieces.append(_edge(event, element))
        inside = (element.text if event == "start" else element.tail) or ""
        if not pre:
            inside = _BLANKS.sub(" ", inside)
            at_line_start = "".join(pieces[-2:]).endswith(("\n", " "))
            inside = inside.lstrip(" ") if at_line_start else inside
        pieces.append(inside)
    return "".join(pieces)


def _mark_heading(element: lxml_html.HtmlElement) -> None:
    text = heading(int(element.tag[1]), element.text_content())
    tail = element.tail
    element.clear()
    element.tag, element.text, element.tail = "p", text, tail


def _label_rows(table: lxml_html.HtmlElement) -> None:
    """Put rows that name their columns in the place of a large table of one heading row."""
    rows = table.findall("tr") + table.findall("*/tr")
    if len(rows) < 2 or rows[0].find("th") is None or table.find(".//table") is not None:
        return
    if len(table.text_content().encode()) <= SMALL_BYTES or table.find(".//*[@rowspan]") is not None:
        return
    lines = [" ".join((table.findtext("caption") or "").split()), *table_lines(map(_cells, rows))]
    tail = table.tail
    table.clear()
    table.tag, table.text, table.tail = "pre", "\n".join(lines).strip(), tail


def _cells(row: lxml_html.HtmlElement) -> list[str]:
    cells: list[str] = []
    for cell in row.iterchildren("td", "th"):
        span = cell.get("colspan", "1")
        cells += [cell.text_content()] * (min(int(span), _MAX_SPAN) if span.isascii() and span.isdecimal() else 1)
    return cells


def _edge(event: str, element: lxml_html.HtmlElement) -> str:
    if event == "end" and element.tag in ("td", "th"):
        return " | " if element.getnext() is not None else ""
    return "\n" if element.tag in _BLOCKS or (event == "start" and element.tag in _LINES) else ""
