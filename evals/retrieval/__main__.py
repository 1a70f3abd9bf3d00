"""Quality of retrieval: `python -m evals.retrieval --data FOLDER --json FILE`.

For each set words alone, vectors alone and both as the service searches, side by side, and the share of questions that
are refused: of the set's own (it should be none) and of another set's (it should be all). docs/evals.md names the sets.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evals.retrieval.bench import Bench, Leg, joined, open_bench
from evals.retrieval.scores import ndcg, recall, span_scores, within
from evals.retrieval.sets import SETS, EvalSet, Question, load
from retriever import Passage

BUDGET = 2000  # tokens of the embedder
OTHERS = 50  # questions of each other set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--questions", type=int, default=200, help="per set, drawn")
    arguments = parser.parse_args()
    with open_bench() as bench:
        rows = list(_rows(bench, arguments))
    arguments.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def _rows(bench: Bench, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    sets = {name: _drawn(load(arguments.data, name), arguments.questions) for name in arguments.sets}
    for name, loaded in sets.items():
        ingested = [bench.ingest(collection, texts) for collection, texts in loaded.collections.items()]
        seconds, passages = (sum(values) for values in zip(*ingested, strict=True))
        row: dict[str, Any] = {"set": name, "passages": passages, "passages_per_s": round(passages / seconds, 1)}
        row |= _scores(bench, loaded)
        others = [asked for other in sets.values() if other is not loaded for asked in _first(other)]
        collections = list(loaded.collections)
        row["refused_others"] = _mean(
            [not bench.search(collections[i % len(collections)], joined(asked)) for i, asked in enumerate(others)]
        )
        _show(row)
        yield row


def _drawn(loaded: EvalSet, questions: int) -> EvalSet:
    """At most so many questions, the same ones every time."""
    everything = [(collection, asked) for collection, listed in loaded.questions.items() for asked in listed]
    picked = np.random.default_rng(0).permutation(len(everything))[:questions]
    return EvalSet(
        loaded.collections,
        {name: [everything[i][1] for i in picked if everything[i][0] == name] for name in loaded.questions},
    )


def _first(loaded: EvalSet) -> list[Question]:
    return [asked for listed in loaded.questions.values() for asked in listed][:OTHERS]


def _scores(bench: Bench, loaded: EvalSet) -> dict[str, Any]:
    """The mean of every score over the questions, by leg, and the share refused."""
    found: dict[str, list[dict[str, float]]] = {}
    refused = []
    for collection, asked in loaded.questions.items():
        files = bench.filenames(collection)
        for leg, search in bench.legs(collection).items():
            found.setdefault(leg, []).extend(_question(bench, files, search, question) for question in asked)
        refused += [not bench.search(collection, joined(question)) for question in asked]
    legs = {leg: {name: _mean([row[name] for row in rows]) for name in rows[0]} for leg, rows in found.items()}
    return {**legs, "questions": len(refused), "refused_own": _mean(refused)}


def _question(bench: Bench, files: dict[str, str], search: Leg, question: Question) -> dict[str, float]:
    if question.spans:
        ranked = search(question.text)
        sizes = [bench.embedder.count_tokens(passage.text) for passage in ranked]
        found, precise = span_scores(within(ranked, sizes, BUDGET), question.spans)
        return {"recall": found, "precision": precise}
    scores: dict[str, Callable[[Sequence[str]], float]] = {
        "ndcg@10": lambda names: ndcg(names, question.files, 10),
        "recall@5": lambda names: recall(names, question.files, 5),
    }
    both = _names(search(joined(question)), files)
    values = {name: score(both) for name, score in scores.items()}
    last = _names(search(question.text), files) if question.previous else both
    return values | {f"{name}, last message": score(last) for name, score in scores.items()}


def _names(passages: Sequence[Passage], files: dict[str, str]) -> list[str]:
    """The documents of a ranking, each at its best passage."""
    return list(dict.fromkeys(files[passage.document_id] for passage in passages))


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 3) if values else float("nan")


def _show(row: dict[str, Any]) -> None:
    print(f"{row['set']}: {row['passages']} passages, {row['questions']} questions, {row['passages_per_s']} passages/s")
    print(f"    {'':24} {'words':>8} {'vectors':>8} {'both':>8}")
    for score in row["both"]:
        print(f"    {score:24}" + "".join(f" {row[leg][score]:8.3f}" for leg in ("words", "vectors", "both")))
    own, others = row["refused_own"], row["refused_others"]
    print(f"    refused: {own:.3f} of its own questions, {others:.3f} of others'", flush=True)


if __name__ == "__main__":
    main()
