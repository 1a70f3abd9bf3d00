"""Whatever happens to a stored cache, the server, the service or a client: is every answer right, and nothing lost?

    python -m evals.faults [--seed N] [--cases 1000] [--only NUMBER…] [--fault NAME] [--deadline S] [--json FILE]

A service runs as a child process, and a Valkey server of its own behind a proxy. Every case draws a fault and a moment
from the seed and its number, asks a session of three turns, and compares with an undisturbed session of the same
questions. Counted, and to be 0: wrong answers, 5xx that are no clean 503, replies later than the deadline, committed
turns that are gone, bytes that the server holds when all sessions are deleted, and other refusals. "disturbed": the
moment came and the fault happened; "from cache": of the answers from the disturbed one on, those that used a stored
cache. The exit status is 1 when a count is not 0; `--only` repeats a case by its number.
"""

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evals.faults.cases import WEIGHTS, draw
from evals.faults.counts import HEADER, Outcome, table
from evals.faults.stand import open_stand
from evals.faults.trying import Trials
from evals.kv_runs import print_table, write_json


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; the exit status."""
    options = _options(arguments)
    numbers = options.only or range(options.cases)
    outcomes: list[Outcome] = []
    failures: list[dict[str, Any]] = []
    with open_stand() as stand:
        trials = Trials(stand, options.deadline)
        for case in (draw(options.seed, number, options.fault) for number in numbers):
            outcome = trials.run(case)
            outcomes.append(outcome)
            if not outcome.clean:
                failures.append({"case": asdict(case), **asdict(outcome), "log": stand.log_tail()})
            words = "clean" if outcome.clean else " | ".join(outcome.notes)
            print(f"{case.label}: {words} ({outcome.seconds:.1f} s)", flush=True)
            write_json(options.json, _results(options, outcomes, failures))
    print_table(table(outcomes), HEADER)
    return int(any(not outcome.clean for outcome in outcomes))


def _results(options: Namespace, outcomes: list[Outcome], failures: list[dict[str, Any]]) -> dict[str, Any]:
    rows = {fault: dict(zip(HEADER[1:], row, strict=True)) for fault, row in table(outcomes).items()}
    return {"seed": options.seed, "cases": len(outcomes), "table": rows, "failures": failures}


def _options(arguments: list[str] | None) -> Namespace:
    parser = ArgumentParser(prog="python -m evals.faults", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the cases to run")
    parser.add_argument("--fault", choices=sorted(WEIGHTS), help="the fault of all cases")
    parser.add_argument("--deadline", type=float, default=40.0, help="seconds that a reply may take")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
