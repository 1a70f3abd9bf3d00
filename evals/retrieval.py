"""Retrieval quality: `python -m evals.retrieval --data FOLDER --json FILE`.

For each set, recall of the gold passage by words alone, by vectors alone and by both, and the share of questions that
are refused: of its own questions (it should be none) and of another set's (it should be all). FOLDER holds
`xquad.{en,zh,ar}.jsonl` (lines of context and questions) and `spans/` (texts, and questions with gold spans).
"""

import argparse
import io
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from sqlalchemy import Engine

from app.engine.loading import resolve_embedder
from app.settings import Settings
from evals.kv_runs import write_json
from retriever import Embedder, Passage, Retriever, content_words, lexical, open_database, store
from retriever.index import VectorIndex

TENANT = "eval"
LIMIT = 10


@dataclass(frozen=True)
class Question:
    """A question and what its passage has to overlap: [start, end) of a document, the first gold span."""

    text: str
    document: str
    start: int
    end: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["xquad.en", "xquad.zh", "xquad.ar", "state_of_the_union"])
    parser.add_argument("--questions", type=int, default=200, help="per set")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    embedder = Embedder(resolve_embedder(Settings()), "cpu")
    with tempfile.TemporaryDirectory() as folder:
        engine = open_database(f"sqlite:///{folder}/eval.db")
        retriever = Retriever(engine, embedder, Path(folder))
        retriever.start()
        try:
            report = _report(retriever, engine, embedder, arguments)
        finally:
            retriever.stop()
            engine.dispose()
    write_json(arguments.json, report)


def _report(
    retriever: Retriever, engine: Engine, embedder: Embedder, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    sets = {name: _load(arguments.data, name) for name in arguments.sets}
    questions, rows = {}, []
    for name, (texts, asked) in sets.items():
        seconds, passages = _ingest(retriever, name, texts)
        picked = np.random.default_rng(0).permutation(len(asked))[: arguments.questions]
        questions[name] = [asked[i] for i in picked]
        rows.append({"set": name, "passages": passages, "passages_per_s": round(passages / seconds, 1)})
    print(f"{'set':20} {'passages':>8} {'/s':>6}   recall@1/@5: words, vectors, both      refused own/others  ms")
    for row, name in zip(rows, sets, strict=True):
        row |= _recalls(retriever, engine, embedder, name, questions[name])
        others = [question for other in sets if other != name for question in questions[other][:50]]
        row["refused_others"] = _share(not _search(retriever, name, question) for question in others)
        legs = "  ".join(f"{row[leg][0]:.3f} {row[leg][1]:.3f}" for leg in ("words", "vectors", "both"))
        refused = f"{row['refused_own']:.3f} {row['refused_others']:.3f}"
        print(f"{name:20} {row['passages']:8} {row['passages_per_s']:6}   {legs}   {refused}   {row['search_ms']}")
    return rows


def _load(data: Path, name: str) -> tuple[dict[str, str], list[Question]]:
    """Texts by document name, and the questions about them."""
    if name.startswith("xquad"):
        lines = [json.loads(line) for line in (data / f"{name}.jsonl").read_text("utf-8").splitlines()]
        texts = {f"{i}.txt": line["context"] for i, line in enumerate(lines)}
        return texts, [
            Question(asked["question"], f"{i}.txt", 0, len(line["context"]))
            for i, line in enumerate(lines)
            for asked in line["questions"]
        ]
    text = (data / "spans" / f"{name}.md").read_text("utf-8")
    lines = [json.loads(line) for line in (data / "spans" / "questions.jsonl").read_text("utf-8").splitlines()]
    return {f"{name}.md": text}, [
        Question(line["question"], f"{name}.md", *_shifted(text, line["references"][0]["content"]))
        for line in lines
        if line["corpus"] == name
    ]


def _shifted(text: str, content: str) -> tuple[int, int]:
    start = text.find(content)
    return start, start + len(content)


def _ingest(retriever: Retriever, name: str, texts: dict[str, str]) -> tuple[float, int]:
    started = time.monotonic()
    for filename, text in texts.items():
        retriever.add(TENANT, name, filename, io.BytesIO(text.encode()))
    while any(document.progress < 1 for document in retriever.documents(TENANT, name)):
        time.sleep(0.5)
    passages = sum(document.passages for document in retriever.documents(TENANT, name))
    return time.monotonic() - started, passages


def _recalls(
    retriever: Retriever, engine: Engine, embedder: Embedder, name: str, questions: Sequence[Question]
) -> dict[str, Any]:
    names = {document.document_id: document.filename for document in retriever.documents(TENANT, name)}
    index = VectorIndex(embedder.dimension)
    legs: dict[str, Callable[[Question], Sequence[Passage]]] = {}
    with engine.connect() as connection:
        vectors = store.vectors_of(connection, sorted(store.indexed_numbers(connection, TENANT, name, embedder.name)))
        index.add(list(vectors), np.frombuffer(b"".join(vectors.values()), np.float32).reshape(len(vectors), -1))

        def passages(numbers: Sequence[int]) -> list[Passage]:
            found = store.passages_by_number(connection, TENANT, numbers)
            return [found[number] for number in numbers]

        legs["words"] = lambda question: passages(
            lexical.search(connection, TENANT, name, content_words(question.text), LIMIT)
        )
        legs["vectors"] = lambda question: passages(list(index.search(embedder.embed([question.text])[0], LIMIT)))
        legs["both"] = lambda question: _search(retriever, name, question)
        found = {
            leg: [list(_hits(run(question), question, names)) for question in questions] for leg, run in legs.items()
        }
    started = time.monotonic()
    refused = _share(not _search(retriever, name, question) for question in questions)
    milliseconds = round((time.monotonic() - started) / len(questions) * 1000)
    recalls = {leg: [_share(any(hits[:k]) for hits in lists) for k in (1, 5)] for leg, lists in found.items()}
    return {**recalls, "refused_own": refused, "search_ms": milliseconds}


def _search(retriever: Retriever, name: str, question: Question) -> list[Passage]:
    return [hit.passage for hit in retriever.search(TENANT, name, question.text, LIMIT)]


def _hits(passages: Sequence[Passage], question: Question, names: dict[str, str]) -> Iterator[bool]:
    for passage in passages:
        overlaps = passage.start < question.end and question.start < passage.end
        yield overlaps and names[passage.document_id] == question.document


def _share(values: Any) -> float:
    return round(float(np.mean(list(values))), 3)


if __name__ == "__main__":
    main()
