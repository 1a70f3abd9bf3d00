"""Do citations name the right spans: `python -m evals.citations --data FOLDER --json FILE`.

FOLDER holds `covidqa.jsonl` and `spans/`. The answer is the gold evidence, whole and abridged (every fourth word left
out), the sources are the passages with the evidence and those most like the question in words, `--passages` in all.
Precision: share of cited sources that touch a gold span. Recall: share of the gold characters that are cited.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.citations import Citation, cite
from evals.retrieval.sets import SPANS, load
from retriever import Passage, content_words
from retriever.extract.clean import clean
from retriever.lexical import coverage

PASSAGE_CHARS = 900  # about what the service's passages have


@dataclass(frozen=True)
class Case:
    """An answer whose evidence is known: [start, end) of the document."""

    question: str
    answer: str
    spans: tuple[tuple[int, int], ...]
    passages: list[Passage]


Method = Callable[[Case, str], list[Citation]]
METHODS: dict[str, Method] = {
    "answer alone": lambda case, answer: cite(answer, case.passages),
    "with question": lambda case, answer: cite(answer, case.passages, case.question),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=6)
    parser.add_argument("--questions", type=int, default=100, help="per set, drawn")
    arguments = parser.parse_args()
    make = partial(_case, count=arguments.passages)
    sets = {
        "covidqa": list(_papers(arguments.data / "covidqa.jsonl", make)),
        "spans": [case for name in SPANS for case in _spans(arguments.data, name, make)],
    }
    rows = []
    print(f"{'set':10} {'answer':10} {'method':15} precision  recall  sources an answer")
    for name, cases in sets.items():
        picked = [cases[i] for i in np.random.default_rng(0).permutation(len(cases))[: arguments.questions]]
        for kind, change in (("whole", str), ("abridged", abridged)):
            for method, run in METHODS.items():
                row = {"set": name, "answer": kind, "method": method} | _scores(picked, change, run)
                rows.append(row)
                figures = f"{row['precision']:9.3f} {row['recall']:7.3f} {row['sources']:8.2f}"
                print(f"{name:10} {kind:10} {method:15} {figures}", flush=True)
    arguments.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def _papers(path: Path, make: Callable[..., Case]) -> Iterator[Case]:
    for paper in map(json.loads, path.read_text("utf-8").splitlines()):
        for asked in paper["questions"][:5]:
            gold = asked["answers"][0]
            start = paper["text"].find(gold["text"], max(gold["answer_start"] - 50, 0))
            if start >= 0:
                yield make(paper["text"], asked["question"], ((start, start + len(gold["text"])),))


def _spans(data: Path, name: str, make: Callable[..., Case]) -> Iterator[Case]:
    loaded = load(data, name)
    text = clean(loaded.collections[name][f"{name}.txt"])
    for asked in loaded.questions[name]:
        yield make(text, asked.text, asked.spans)


def _case(text: str, question: str, spans: tuple[tuple[int, int], ...], count: int) -> Case:
    pieces = [
        Passage(f"d:{i}", "d", "title", 1, start, start + len(piece), piece)
        for i, start in enumerate(range(0, len(text), PASSAGE_CHARS))
        for piece in [text[start : start + PASSAGE_CHARS]]
    ]
    gold = [piece for piece in pieces if any(piece.start < end and start < piece.end for start, end in spans)]
    words = content_words(question)
    others = sorted((piece for piece in pieces if piece not in gold), key=lambda piece: -coverage(words, piece.text))
    answer = " ".join(text[start:end] for start, end in spans)
    return Case(question, answer, spans, gold + others[: max(count - len(gold), 0)])


def abridged(answer: str) -> str:
    """Without every fourth word, as by a model that shortens."""
    return " ".join(word for i, word in enumerate(answer.split(), 1) if i % 4)


def _scores(cases: Sequence[Case], change: Callable[[str], str], run: Method) -> dict[str, Any]:
    hits: list[bool] = []
    recalls = []
    for case in cases:
        cited = [(s.start, s.end) for citation in run(case, change(case.answer)) for s in citation.sources]
        hits += [any(start < b and a < end for a, b in case.spans) for start, end in cited]
        recalls.append(_covered(cited, case.spans))
    precision = float(np.mean(hits)) if hits else 0.0  # what cites nothing names no right span
    values = {"precision": precision, "recall": float(np.mean(recalls)), "sources": len(hits) / len(cases)}
    return {name: round(value, 3) for name, value in values.items()}


def _covered(cited: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> float:
    gold = {at for start, end in spans for at in range(start, end)}
    return len(gold & {at for start, end in cited for at in range(start, end)}) / len(gold)


if __name__ == "__main__":
    main()
