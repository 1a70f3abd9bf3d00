"""Text and Markdown."""

from pathlib import Path

from charset_normalizer import from_bytes

from retriever.extract.clean import clean
from retriever.model import Extracted


def extract(path: Path) -> Extracted:
    """The file's text; a Markdown heading, if one comes first, is the title."""
    text, warnings = decode(path.read_bytes())
    text = clean(text)
    return Extracted(text, [(0, len(text))], heading(text), warnings)


def decode(data: bytes) -> tuple[str, list[str]]:
    """UTF-8 (or UTF-16 with its mark), else the likeliest encoding with a warning that names it."""
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        return data.decode(encoding), []
    except UnicodeDecodeError:
        best = from_bytes(data).best()
    if best is None:
        return data.decode("utf-8", "replace"), ["The text is not valid UTF-8; what could not be read shows as \ufffd."]
    return str(best), [f"The text is not valid UTF-8; it was read as {best.encoding}."]


def heading(text: str) -> str:
    """The first Markdown heading of level one if the text begins with it, else nothing."""
    first = text.split("\n", 1)[0]
    return first.removeprefix("# ").strip()[:200] if first.startswith("# ") else ""
