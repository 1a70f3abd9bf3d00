"""Generated tasks in RULER's manner: what is left of the scores when a part of the cache is kept?

    python -m evals.ruler [--haystack DIR] [--tasks single multi_key] [--lengths 1000 2000] [--draws 2]
        [--policies snapkv expected_attention] [--fractions 1/4 1/16] [--json FILE] [--plot FILE.png]

Two tables, apart. Question known: the policy chooses from the whole prompt, which ends with the question. Question
unknown: it chooses from the text alone, and the question is read behind what it kept; that is what a cache stored for
later questions is asked to do. The score is the share of the expected strings that the greedy answer holds, as in RULER
(https://arxiv.org/abs/2404.06654). Lengths are those of the texts in tokens; "kept" is the part of the entries of what
the policy chose from, all counted.
"""

import random
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from evals import policies
from evals.kv_runs import Runner, arguments, as_json, print_table, write_json
from evals.needles import Haystack
from evals.plots import lines
from evals.ruler_tasks import TASKS, Material, Task
from evals.scores import holds
from kv_compression import Allocation, Policy

TOKENS = 20  # of an answer, for every string that is expected
KNOWN, UNKNOWN = "question known", "question unknown"
Record = dict[str, Any]
"""One draw: task, length, expected, and by `KNOWN` and `UNKNOWN`, by row, `score`, `kept` and `answer`."""


def ask(
    runner: Runner,
    task: Task,
    known: bool,
    always: Mapping[str, Policy],
    allocations: Mapping[str, Allocation],
    options: Namespace,
) -> dict[str, dict[str, object]]:
    """Row name -> score, part kept and answer of one task."""
    text = [*runner.opening(""), *task.text]
    question = [*runner.question(task.question), *runner.encode(task.begin)]
    read, later = ([*text, *question], []) if known else (text, question)
    budgets = policies.budgets_of(len(read), options.budgets, options.fractions)
    table = {
        **always,
        **policies.held_to(budgets, always),
        **policies.rows(options.policies, budgets, allocations),
    }
    reading = runner.read(read, table.values())
    most, rows = TOKENS * len(task.expected), {}
    for name, policy in table.items():
        working = reading.select(policy, room=len(later) + most)
        kept = working.entries / reading.cache.entries
        logits = runner.prefill(working, later).logits if later else reading.logits
        answer = runner.answer(working, logits, most, until=task.expected)
        rows[name] = {"score": holds(answer, task.expected) / len(task.expected), "kept": kept, "answer": answer}
    return rows


def measure(runner: Runner, options: Namespace) -> list[Record]:
    """All draws; the file of results grows with them."""
    torch.manual_seed(options.seed)
    draw = random.Random(options.seed)
    material = Material(Haystack(options.haystack, runner.encode), runner.encode, draw)
    allocations = runner.allocations(options.allocations)
    always, records = policies.without_budget(options.policies, runner.tokenizer), []
    for _, length, name in product(range(options.draws), options.lengths, options.tasks):
        task = TASKS[name](material, length)
        record: Record = {"task": name, "length": length, "expected": task.expected}
        for part in (KNOWN, UNKNOWN):
            record[part] = ask(runner, task, part == KNOWN, always, allocations, options)
        records.append(record)
        write_json(options.json, {"options": as_json(options), "draws": records})
        print(f"{length} tokens, {name}: full {record[KNOWN]['full']['score']:.2f}", file=sys.stderr, flush=True)
    return records


def mean(records: Sequence[Record], part: str, name: str, what: str, task: str | None = None) -> float:
    """Of a row, over the draws of one task or of all."""
    return fmean(record[part][name][what] for record in records if task in (None, record["task"]))


def table_of(records: Sequence[Record], part: str) -> tuple[dict[str, list[str]], list[str]]:
    """Rows and header: scores by task and in the mean, and the part kept."""
    tasks = list(dict.fromkeys(record["task"] for record in records))
    table = {
        name: [
            *(f"{mean(records, part, name, 'score', task):.2f}" for task in tasks),
            f"{mean(records, part, name, 'score'):.3f}",
            f"{mean(records, part, name, 'kept'):.1%}",
        ]
        for name in records[0][part]
    }
    return table, [part, *(task[:14] for task in tasks), "mean", "kept"]


def plot(path: Path, records: Sequence[Record]) -> None:
    """Mean score against the part kept: rows whose names differ by nothing but the budget make a line."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for part in (KNOWN, UNKNOWN):
        series = panels.setdefault(part, {})
        for name in records[0][part]:
            line = " ".join(word for word in name.split() if not word[0].isdigit())
            series.setdefault(line, []).append((mean(records, part, name, "kept"), mean(records, part, name, "score")))
        del series["full"]
    lines(
        path,
        panels,
        title=f"Tasks in RULER's manner, {len(records)} draws",
        x="part of the entries kept",
        y="mean score",
        reference=("full cache", mean(records, KNOWN, "full", "score")),
        log_shares=True,
    )


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__, budgets=[])
    policies.add_options(parser, ["snapkv", "expected_attention", "keydiff", "streaming_llm"], ["1/4", "1/8", "1/16"])
    parser.add_argument("--haystack", default=Path("samples"), type=Path, help="folder of texts")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--lengths", nargs="+", type=int, default=[1000, 2000], help="of the texts in tokens")
    parser.add_argument("--draws", type=int, default=2, help="for every task and length")
    options = parser.parse_args()
    records = measure(Runner.load(options.model), options)
    for part in (KNOWN, UNKNOWN):
        print_table(*table_of(records, part))
        print()
    if options.plot:
        plot(options.plot, records)


if __name__ == "__main__":
    main()
