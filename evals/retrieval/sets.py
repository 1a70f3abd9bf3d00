"""The sets: texts by file name, and questions with what has to be found in them."""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retriever.extract.clean import clean

SPANS = ("finance", "pubmed", "state_of_the_union")
SETS = ("mtrag_un", *SPANS, "xquad.en", "xquad.zh", "xquad.ar")


@dataclass(frozen=True)
class Question:
    """`text`, behind `previous` (the user's message before it, or ""). `files`: the documents that answer it, or
    `spans`: [start, end) of the only document that do."""

    text: str
    previous: str
    files: frozenset[str] = frozenset()
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class EvalSet:
    """`collections`: texts by file name, by collection. `questions` by collection."""

    collections: dict[str, dict[str, str]]
    questions: dict[str, list[Question]]


def load(data: Path, name: str) -> EvalSet:
    """A set of SETS out of the folder `data`."""
    if name in SPANS:
        return _spans(data / "spans", name)
    if name.startswith("xquad"):
        return _xquad(data / f"{name}.jsonl", name)
    return _conversations(data / f"{name}.jsonl", data / f"{name}_qrels")


def _spans(folder: Path, name: str) -> EvalSet:
    with (folder / f"{name}.md").open(encoding="utf-8", newline="") as file:
        text = clean(file.read())
    questions = [
        Question(line["question"], "", spans=tuple(_located(text, r) for r in line["references"]))
        for line in _lines(folder / "questions.jsonl")
        if line["corpus"] == name
    ]
    return EvalSet({name: {f"{name}.txt": text}}, {name: questions})


def _located(text: str, reference: dict[str, Any]) -> tuple[int, int]:
    """Where a reference stands in the text as it is extracted, whose blanks differ from those of the file."""
    words = r"\s+".join(map(re.escape, reference["content"].split()))
    found = min(re.finditer(words, text), key=lambda match: abs(match.start() - reference["start_index"]))
    return found.span()


def _xquad(path: Path, name: str) -> EvalSet:
    paragraphs = list(_lines(path))
    questions = [
        Question(asked["question"], "", files=frozenset({f"{i}.txt"}))
        for i, paragraph in enumerate(paragraphs)
        for asked in paragraph["questions"]
    ]
    return EvalSet({name: {f"{i}.txt": p["context"] for i, p in enumerate(paragraphs)}}, {name: questions})


def _conversations(path: Path, judgements: Path) -> EvalSet:
    """MTRAG-UN: a collection per domain holds the passages that any of its turns was given; a judgement belongs to a
    turn of a conversation."""
    relevant: defaultdict[str, set[str]] = defaultdict(set)
    for file in sorted(judgements.glob("*.tsv")):
        with file.open(encoding="utf-8", newline="") as rows:
            for row in csv.DictReader(rows, delimiter="\t"):
                relevant[row["query-id"]].add(_filename(row["corpus-id"]))
    collections: defaultdict[str, dict[str, str]] = defaultdict(dict)
    questions: defaultdict[str, list[Question]] = defaultdict(list)
    for turn in _lines(path):
        domain = turn["Collection"][0] if isinstance(turn["Collection"], list) else turn["Collection"]
        collections[domain] |= {_filename(found["document_id"]): found["text"] for found in turn["contexts"]}
        if turn["task_id"] in relevant:
            said = [message["text"] for message in turn["input"] if message["speaker"] == "user"]
            previous = said[-2] if len(said) > 1 else ""
            questions[domain].append(Question(said[-1], previous, files=frozenset(relevant[turn["task_id"]])))
    return EvalSet(dict(collections), dict(questions))


def _filename(document_id: str) -> str:
    return re.sub(r"[^\w.-]", "_", document_id) + ".txt"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)
