"""Needles hidden in essays and asked for at the end: how many are found, by policy, budget, length, depth and kind?

    python -m evals.needle [--haystack DIR] [--kinds digits names] [--lengths 1000 2000] [--depths 10] [--draws 1]
        [--policies snapkv streaming_llm] [--budgets 256 512] [--fractions 1/30] [--json FILE] [--plot FILE.png]

The haystack is a folder of .txt and .md files. Every prompt is read once, and all policies select from that cache. A
needle is found when the greedy answer holds all that was asked for. "of full's" are the draws that the full cache
finds, and what the policy finds of them; "kept" is the part of the full cache's entries that it kept, all counted.
"""

import random
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from evals import policies
from evals.kv_runs import Runner, arguments, as_json, print_table, write_json
from evals.needles import KINDS, Haystack, Needle, text
from evals.plots import heatmaps
from evals.scores import holds
from kv_compression import Policy

TOKENS = 24  # of an answer, for everything that is asked
Record = dict[str, Any]
"""One draw: kind, length, depth, and by row `found`, `kept` and `answers`."""


def ask(runner: Runner, prompt: Sequence[int], needle: Needle, table: dict[str, Policy]) -> Record:
    """One prompt, answered from the cache of every row."""
    reading = runner.read(prompt, table.values())
    most = TOKENS * len(needle.expected)
    answers, kept = {}, {}
    for name, policy in table.items():
        working = reading.select(policy, room=most)
        kept[name] = working.entries / reading.cache.entries
        answers[name] = runner.answer(working, reading.logits, most, until=needle.expected)
    found = {name: holds(answer, needle.expected) == len(needle.expected) for name, answer in answers.items()}
    return {"expected": needle.expected, "found": found, "kept": kept, "answers": answers}


def counted(records: Iterable[Record], name: str, where: Callable[[Record], bool] = lambda record: True) -> str:
    """`found/draws` of a row, where a condition holds."""
    found = [record["found"][name] for record in records if where(record)]
    return f"{sum(found)}/{len(found)}"


def table_of(records: Sequence[Record], column: str) -> tuple[dict[str, list[str]], list[str]]:
    """Rows and header: what every row found, by the values of a column of the records, and in all."""
    values = list(dict.fromkeys(record[column] for record in records))
    table = {
        name: [
            *(counted(records, name, lambda record, value=value: record[column] == value) for value in values),  # type: ignore[misc]
            counted(records, name, lambda record: record["found"]["full"]),
            f"{fmean(record['kept'][name] for record in records):.1%}",
        ]
        for name in records[0]["found"]
    }
    return table, ["found", *map(str, values), "of full's", "kept"]


def plot(path: Path, records: Sequence[Record]) -> None:
    """A heat-map of lengths and depths for every row."""
    lengths, depths = (sorted({record[column] for record in records}) for column in ("length", "depth"))
    panels = {
        name: [
            [
                fmean(
                    record["found"][name]
                    for record in records
                    if (record["length"], record["depth"]) == (length, depth)
                )
                for length in lengths
            ]
            for depth in depths
        ]
        for name in records[0]["found"]
    }
    draws = len(records) // (len(lengths) * len(depths))
    heatmaps(
        path,
        panels,
        title=f"Needles found, {draws} draws a cell",
        x=("prompt, tokens", lengths),
        y=("depth, % of the text", [f"{depth:.0%}" for depth in depths]),
        value="share found",
        limits=(0, 1),
    )


def measure(runner: Runner, options: Namespace) -> list[Record]:
    """All draws; the file of results grows with them."""
    draw, haystack = random.Random(options.seed), Haystack(options.haystack, runner.encode)
    allocations, opening = runner.allocations(options.allocations), runner.opening("")
    always, records = policies.without_budget(options.policies, runner.tokenizer), []
    for length, kind, step, _ in product(options.lengths, options.kinds, range(options.depths), range(options.draws)):
        needle, depth = KINDS[kind](draw), (step + 0.5) / options.depths
        question = runner.question(needle.question)
        room = length - len(opening) - len(question)
        prompt = [*opening, *text(needle, haystack, room, depth, draw, runner.encode), *question]
        budgets = policies.budgets_of(len(prompt), options.budgets, options.fractions)
        table = always | policies.held_to(budgets, always) | policies.rows(options.policies, budgets, allocations)
        asked = ask(runner, prompt, needle, table)
        records.append({"kind": kind, "length": length, "depth": depth, **asked})
        write_json(options.json, {"options": as_json(options), "draws": records})
        print(
            f"{length} tokens, {kind}, depth {depth:.0%}: {sum(asked['found'].values())} rows found it", file=sys.stderr
        )
    return records


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__, budgets=[256, 512, 1024])
    parser.add_argument("--haystack", default=Path("samples"), type=Path, help="folder of texts")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--lengths", nargs="+", type=int, default=[1000, 2000], help="prompt lengths in tokens")
    parser.add_argument("--depths", type=int, default=4, help="number of even depths")
    parser.add_argument("--draws", type=int, default=1, help="for every kind, length and depth")
    policies.add_options(parser, ["snapkv", "streaming_llm"], fractions=[])
    options = parser.parse_args()
    records = measure(Runner.load(options.model), options)
    for column in ("length", "kind"):
        print_table(*table_of(records, column))
        print()
    if options.plot:
        plot(options.plot, records)


if __name__ == "__main__":
    main()
