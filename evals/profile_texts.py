"""Texts of several sources, and the head profiles that each of them gives."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from app.engine.loading import LoadedModel
from app.engine.tuning import tune

PARTS = 8  # into which the paragraphs of one file are divided; the same in every language

Shares = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Text:
    """A document of a source, by its name."""

    source: str
    document: str
    text: str


@dataclass(frozen=True)
class Measured:
    """The shares [layers][kv_heads] that the first `tokens` of a document give, by budget."""

    source: str
    document: str
    tokens: int
    shares: dict[int, Shares]


def documents(path: Path) -> dict[str, str]:
    """Name -> text: a folder's files; JSON lines {"document_id", "text"}, or {"context"}, paragraphs; a file."""
    if path.is_dir():
        return {file.name: file.read_text(encoding="utf-8") for file in sorted(path.iterdir()) if file.is_file()}
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return {path.name: text}
    rows = [json.loads(line) for line in text.splitlines()]
    if "context" not in rows[0]:
        return {str(row["document_id"]): row["text"] for row in rows}
    size = len(rows) // PARTS
    parts = [rows[part * size : (part + 1) * size] for part in range(PARTS)]
    return {f"part {number}": "\n\n".join(row["context"] for row in part) for number, part in enumerate(parts)}


def draw(loaded: LoadedModel, sources: dict[str, Path], count: int, tokens: int, seed: int) -> list[Text]:
    """`count` documents of every source, or all, that have so many tokens; the sources take turns."""
    drawn = [_long_enough(loaded, source, path, count, tokens, seed) for source, path in sources.items()]
    return [text for text in chain.from_iterable(zip_longest(*drawn)) if text is not None]


def _long_enough(loaded: LoadedModel, source: str, path: Path, count: int, tokens: int, seed: int) -> list[Text]:
    found = [Text(source, name, text) for name, text in documents(path).items()]
    random.Random(seed).shuffle(found)
    fitting = (text for text in found if len(loaded.tokenizer.encode(text.text)) >= tokens)
    return [text for text, _ in zip(fitting, range(count), strict=False)]


def measure(loaded: LoadedModel, text: Text, tokens: int, budgets: Sequence[int]) -> Measured:
    """At one length, which is above the budgets."""
    profiles = tune(loaded, [text.text], budgets=budgets, tokens=tokens)
    return Measured(text.source, text.document, tokens, {budget: one.shares for budget, one in profiles.items()})


def load(path: Path | None) -> list[Measured]:
    """Those of a file that the study wrote, none if there is no such file."""
    if path is None or not path.is_file():
        return []
    return [_measured(row) for row in json.loads(path.read_text(encoding="utf-8"))["profiles"]]


def _measured(row: dict[str, Any]) -> Measured:
    shares = {int(budget): tuple(map(tuple, shares)) for budget, shares in row["shares"].items()}
    return Measured(row["source"], row["document"], row["tokens"], shares)
