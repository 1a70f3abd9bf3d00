"""Text, Markdown and source code."""

import re
from dataclasses import replace
from pathlib import Path

from charset_normalizer import from_bytes

from retriever.extract.clean import clean, clean_title
from retriever.model import Extracted, Heading

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
# source code and what lies beside it: text, line by line, and neither titles nor headings
CODE = frozenset(
    "adb adoc asm bash bat c cc cfg cjs clj cmake coffee conf cpp cs css cu cxx d dart diff el env ex exs f90 fs go "
    "gradle graphql groovy h hh hpp hs hxx ini java jl js jsx kt kts less lisp log lua m mjs mk ml mm nim nix org pas "
    "patch php pl pm properties proto ps1 py pyi pyx r rb rs rst sass scala scm scss sh sol sql srt svelte swift tcl "
    "tex tf toml ts tsx v vb vhd vtt vue xml yaml yml zig zsh".split()
)
_MARKDOWN = re.compile(r"^(?:(?P<fence>```|~~~)|(?P<signs>#{1,6}) +(?P<title>\S[^\n]*))", re.MULTILINE)
_GUESS_BYTES = 2**20  # an encoding shows in the first mebibyte, and guessing from more takes minutes


def extract(path: Path) -> Extracted:
    """The file's text; a Markdown heading, if one comes first, is the title."""
    text, warnings = decode(path.read_bytes())
    text = clean(text)
    return Extracted(text, [(0, len(text))], heading(text), warnings)


def extract_code(path: Path) -> Extracted:
    """The same, without a title: a number sign begins a comment."""
    return replace(extract(path), title="")


def extract_markdown(path: Path) -> Extracted:
    """The same, with all its headings."""
    extracted = extract(path)
    return replace(extracted, headings=markdown_headings(extracted.text))


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


def markdown_headings(text: str) -> list[Heading]:
    """The headings that begin with number signs, outside fenced code."""
    found, fence = [], ""
    for match in _MARKDOWN.finditer(text):
        if match["fence"]:
            fence = "" if match["fence"] == fence else fence or match["fence"]
        elif not fence:
            found.append(Heading(match.start(), len(match["signs"]), clean_title(match["title"].rstrip("# "))))
    return found


def _readable(text: str) -> int:
    """Characters beyond ASCII that did decode. More of them than of losses: damaged UTF-8, not another encoding."""
    return sum(1 for character in text if character > "\x7f" and character != "\ufffd")
