"""Text as it is stored: the offsets of passages and citations count in what these functions return."""

import re
import unicodedata

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_GAPS = re.compile(r"\n{3,}")
_UNSHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def clean(text: str) -> str:
    """One kind of line end, no control characters, no blanks before line ends, at most one empty line in a row."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace("\ufeff", "")
    lines = _CONTROL.sub("", text).split("\n")
    return _GAPS.sub("\n\n", "\n".join(line.rstrip(" \t\u00a0") for line in lines)).strip()


def clean_title(text: str | None) -> str:
    """A title in one line, of sane length."""
    return " ".join(clean(text or "").split())[:200]


def clean_filename(filename: str) -> str:
    """A name to show: without folders, control and direction-changing characters, in composed form, of sane length."""
    name = filename.replace("\\", "/").rsplit("/", 1)[-1]
    shown = "".join(c for c in unicodedata.normalize("NFC", name) if unicodedata.category(c) not in _UNSHOWN)
    stem, dot, suffix = shown.strip().rpartition(".")
    return f"{stem[:200]}{dot}{suffix[:20]}" if stem else shown.strip()[:200]
