"""Text and Markdown."""

from pathlib import Path

from charset_normalizer import from_bytes

from retriever.extract.clean import clean, clean_title
from retriever.model import Extracted

_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
# without the many that differ from one of these in a few letters, and win on short texts
_ENCODINGS = (
    "cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 cp874 iso8859_2 koi8_r "
    "cp932 euc_jp gb18030 big5 cp949"
).split()
_GUESS_BYTES = 2**20  # an encoding shows in the first mebibyte, and guessing from more takes minutes


def extract(path: Path) -> Extracted:
    """The file's text; a Markdown heading, if one comes first, is the title."""
    text, warnings = decode(path.read_bytes())
    text = clean(text)
    return Extracted(text, [(0, len(text))], heading(text), warnings)


def decode(data: bytes) -> tuple[str, list[str]]:
    """UTF-8 (or UTF-16 and UTF-32 with their mark), else the likeliest encoding with a warning that names it."""
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8-sig")
    try:
        return data.decode(encoding), []
    except UnicodeDecodeError:
        text = data.decode(encoding, "replace")
    lost = text.count("\ufffd")
    guess = "" if lost <= _readable(text) else _guess(data[:_GUESS_BYTES])
    if not guess:
        return text, [f"The text is not valid UTF-8: {lost} places that could not be read show as \ufffd."]
    return data.decode(guess, "replace"), [f"The text is not valid UTF-8; it was read as {guess}."]


def _guess(sample: bytes) -> str:
    """The likeliest of the encodings that files of today have; nothing when it is none of them."""
    matches = from_bytes(sample, cp_isolation=_ENCODINGS)
    best = max(matches, key=lambda match: (-match.chaos, match.coherence, match.encoding == "cp1252"), default=None)
    return best.encoding if best else ""


def heading(text: str) -> str:
    """The first Markdown heading of level one if the text begins with it, else nothing."""
    first = text.split("\n", 1)[0]
    return clean_title(first.removeprefix("# ")) if first.startswith("# ") else ""


def _readable(text: str) -> int:
    """Characters beyond ASCII that did decode. More of them than of losses: damaged UTF-8, not another encoding."""
    return sum(1 for character in text if character > "\x7f" and character != "\ufffd")
