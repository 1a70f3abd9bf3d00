"""Questions on one long document in one session: what do stored caches keep for the later ones?

    python -m evals.multiturn --data covidqa.jsonl [--documents 3] [--questions 5] [--scorers keydiff random]
        [--budgets 512 1024] [--allocations profile uniform] [--storage bfloat16 int4] [--working 512] [--answers]
        [--selectors blend snapkv] [--apart] [--json FILE] [--plot FILE.png]

Every document is read once. The rows:

- full: the whole cache;
- full FORMAT: the same, stored in another format;
- SELECTOR BUDGET by the first question: what the first question selects is stored, and answers all that follow;
- SELECTOR BUDGET by each question: everything is stored, and every question selects from it;
- SCORER BUDGET ALLOCATION FORMAT: an archive, chosen from the document alone, answers all questions;
- the same, > SELECTOR BUDGET: every question selects from the archive.

Later turns see the questions before them with their gold answers. The measure is the mean negative log-likelihood per
token of the gold answer, at question 1 and at those after it; "against full" is the relative difference of the latter,
with its 95% interval by bootstrap over documents. Bytes are those stored after the last turn, as a part of what the
whole cache takes in bfloat16. A line of the data is {"document_id", "text", "questions": [{"question", "answers":
[{"text"}]}]}.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from evals import policies
from evals.kv_runs import Runner, arguments, as_json, print_table, write_json
from evals.plots import lines
from evals.scores import relative_interval
from evals.turns import Document, Session, Stored, documents
from kv_compression import Allocation, Observation, Policy


@dataclass(frozen=True)
class Row:
    """What is stored of the document (all of it without an `archive`), in which format, and what selects from it."""

    name: str
    archive: Policy | None
    storage: str | None
    working: Policy | None = None
    once: bool = False


def rows(options: Namespace, allocations: Mapping[str, Allocation]) -> list[Row]:
    """Those of one archive next to each other."""
    allocated = [_allocated(options, how, allocation) for how, allocation in allocations.items()]
    everything = [row for table in allocated for row in table if row.archive is None]
    as_stored = [Row(f"full {storage}", None, storage) for storage in options.storage]
    return [
        Row("full", None, None),
        *everything,
        *as_stored,
        *(row for table in allocated for row in table if row.archive),
    ]


def _allocated(options: Namespace, how: str, allocation: Allocation) -> list[Row]:
    """The rows in which budgets are divided in one way."""
    selectors = policies.rows(options.selectors, {str(budget): budget for budget in options.working}, {how: allocation})
    archives = policies.rows(options.scorers, {str(budget): budget for budget in options.budgets}, {how: allocation})
    table = [
        Row(f"{name} by the first question", None, "bfloat16", policy, once=True) for name, policy in selectors.items()
    ]
    table += [Row(f"{name} by each question", None, "bfloat16", policy) for name, policy in selectors.items()]
    for (name, archive), storage in product(archives.items(), options.storage):
        table.append(Row(f"{name} {storage}", archive, storage))
        table += [
            Row(f"{name} {storage} > {selector}", archive, storage, policy)
            for selector, policy in selectors.items()
            if (policy.budget or 0) < (archive.budget or 0)
        ]
    return table


def measure(runner: Runner, document: Document, table: Sequence[Row], options: Namespace) -> dict[str, Any]:
    """Row name -> the turns, the bytes stored of the document, and the bytes stored of all at the end."""
    torch.manual_seed(options.seed)
    chosen_by = [policy for row in table for policy in (row.archive, row.working) if policy]
    reading = runner.read(document.token_ids, chosen_by)
    measured = {}
    for archive, of_archive in groupby(table, key=lambda row: row.archive):
        kept = reading.cache.segment(0) if archive is None else reading.select(archive, room=0).segment(0)
        for storage, alike in groupby(of_archive, key=lambda row: row.storage):
            stored = Stored.of(kept, storage)
            for row in alike:
                measured[row.name] = ask(runner, document, stored, reading.observation, row, options)
    return measured


def ask(
    runner: Runner, document: Document, stored: Stored, observed: Observation | None, row: Row, options: Namespace
) -> dict[str, Any]:
    """One row: all questions in one session, or each in a session of its own, as one prompt with the document."""
    before = observed if row.archive is None else None
    parts = [(question,) for question in document.questions] if options.apart else [document.questions]
    turns = []
    for part in parts:
        session = Session(
            runner, stored, row.storage, row.working, once=row.once, answers=options.answers, before=before
        )
        for question in part:
            session.ask(question)
        turns += [asdict(turn) for turn in session.turns]
    return {"turns": turns, "document_bytes": session.stored[0].nbytes, "bytes": session.nbytes}


def later(measured: Mapping[str, Any], name: str, apart: bool, what: str = "nll") -> float:
    """The mean of a document's turns behind the first; of all turns when each was asked apart."""
    turns = measured[name]["turns"]
    return fmean(turn[what] for turn in (turns if apart else turns[1:] or turns))


def table_of(results: Sequence[Mapping[str, Any]], seed: int, apart: bool) -> dict[str, list[str]]:
    """Row name -> what is printed, the means over documents."""
    full = [later(result, "full", apart) for result in results]
    answered = results[0]["full"]["turns"][0]["f1"] is not None
    table = {}
    for name in results[0]:
        ours = [later(result, name, apart) for result in results]
        low, high = relative_interval(ours, full, seed)
        table[name] = [
            f"{fmean(result[name]['turns'][0]['nll'] for result in results):.3f}",
            f"{fmean(ours):.3f}",
            f"{fmean(ours) / fmean(full) - 1:+.1%}",
            f"{low:+.1%} {high:+.1%}",
            f"{fmean(result[name]['bytes'] for result in results) / 2**20:.2f}",
            *(f"{share(results, name, what):.4f}" for what in ("bytes", "document_bytes")),
        ]
        if answered:
            table[name] += [
                f"{fmean(later(result, name, apart, what) for result in results):.3f}" for what in ("f1", "contained")
            ]
    return table


def share(results: Sequence[Mapping[str, Any]], name: str, what: str) -> float:
    """A row's bytes as a part of the full cache's."""
    return fmean(result[name][what] / result["full"][what] for result in results)


def plot(path: Path, results: Sequence[Mapping[str, Any]], apart: bool) -> None:
    """Likelihood against bytes: rows whose names differ by nothing but numbers make a line."""
    series: dict[str, list[tuple[float, float]]] = {}
    for name in results[0]:
        loss = fmean(later(result, name, apart) for result in results)
        line = " ".join(word for word in name.split() if not word.isdigit())
        series.setdefault(line, []).append((share(results, name, "bytes"), loss))
    (_, full) = series.pop("full")[0]
    lines(
        path,
        {"": series},
        title=f"Gold answers of later questions, {len(results)} documents",
        x="bytes stored, as a part of the full bfloat16 cache's",
        y="mean negative log-likelihood per token (lower is better)",
        reference=("full cache", full),
        log_shares=True,
    )


def parser() -> ArgumentParser:
    """The command line."""
    parser = arguments(__doc__, budgets=[512, 1024])
    scorers = [name for name in policies.NAMES if name not in policies.WITHOUT_BUDGET]
    parser.add_argument("--data", required=True, type=Path, help="documents with questions, JSON lines")
    parser.add_argument("--documents", type=int, default=3)
    parser.add_argument("--questions", type=int, default=5, help="per document")
    parser.add_argument("--tokens", nargs=2, type=int, default=[3000, 7500], help="lengths of documents, from and to")
    parser.add_argument("--scorers", nargs="*", choices=scorers, default=["expected_attention", "keydiff", "random"])
    parser.add_argument("--storage", nargs="+", choices=policies.FORMATS, default=["bfloat16", "int4"])
    parser.add_argument("--working", nargs="*", type=int, default=[512], help="budgets of what questions select")
    parser.add_argument("--selectors", nargs="+", choices=scorers, default=["blend"], help="by which they do")
    parser.add_argument("--answers", action="store_true", help="answer greedily, too, for F1 and containment (slow)")
    parser.add_argument("--apart", action="store_true", help="ask every question in a session of its own")
    return parser


def run(runner: Runner, read: Iterable[Document], table: Sequence[Row], options: Namespace) -> None:
    """Measure document by document, and print the table. SystemExit when there is none."""
    results: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    for document in read:
        results.append(measure(runner, document, table, options))
        done.append({"document": document.name, "tokens": len(document.token_ids), "rows": results[-1]})
        write_json(options.json, {"options": as_json(options), "documents": done})
        print(f"document {document.name} of {len(document.token_ids)} tokens is done", file=sys.stderr)
    if not results:
        raise SystemExit(f"{options.data} has no document of {options.tokens} tokens and {options.questions} questions")
    behind = "all questions" if options.apart else f"questions 2-{options.questions}"
    header = ["cache", "question 1", behind, "against full", "95%", "MiB stored", "of full", "document"]
    print_table(table_of(results, options.seed, options.apart), [*header, *(["F1", "contained"] * options.answers)])
    if options.plot:
        plot(options.plot, results, options.apart)


def main() -> None:
    """The rows of the options, on the first documents."""
    options = parser().parse_args()
    runner = Runner.load(options.model)
    read = documents(options.data, runner, options.documents, options.questions, tuple(options.tokens))
    run(runner, read, rows(options, runner.allocations(options.allocations)), options)


if __name__ == "__main__":
    main()
