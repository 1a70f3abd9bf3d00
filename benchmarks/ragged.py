"""Decoding over heads that hold different numbers of entries, beside heads of one length with as many in all.

    python -m benchmarks.ragged [--tokens 2048] [--budgets 512 1024] [--steps 20] [--json FILE]

The peer is the uniform cache of the same run; the limit for the ratio is 1.15. The steps of both take turns, and the
medians are compared. The prompt is random: only its length matters.
"""

import argparse
from functools import partial
from pathlib import Path

import torch

from app.settings import DEFAULT_MODEL
from benchmarks.timing import in_turns
from evals.kv_runs import Runner, print_table, write_json
from kv_compression import SnapKV, decode_step


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--budgets", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runner = Runner.load(DEFAULT_MODEL)
    allocations = runner.allocations(["uniform", "profile"])
    torch.manual_seed(0)
    reading = runner.read(torch.randint(100, 40_000, (arguments.tokens,)).tolist(), [])
    rows, results = {}, []
    for budget in arguments.budgets:
        caches = {
            name: reading.select(SnapKV(budget, allocation=allocation), room=arguments.steps + 2)
            for name, allocation in allocations.items()
        }
        runs = {name: partial(decode_step, runner.model, cache, 100) for name, cache in caches.items()}
        uniform, ragged = in_turns(runs, arguments.steps).values()
        results.append({"budget": budget, "uniform_ms": uniform, "ragged_ms": ragged, "ratio": ragged / uniform})
        rows[str(budget)] = [f"{uniform:.1f}", f"{ragged:.1f}", f"{ragged / uniform:.2f}"]
    print_table(rows, ["budget", "uniform ms", "ragged ms", "ratio"])
    write_json(arguments.json, results)


if __name__ == "__main__":
    main()
