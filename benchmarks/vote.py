"""What SnapKV adds to a prefill, and what its cache costs in decoding beside a full cache of the same length.

    python -m benchmarks.vote [--tokens 4000] [--budget 1024] [--repeats 5] [--steps 30] [--json FILE]

SnapKV's part of a prefill is timed within that prefill: recording the window's queries in every layer, and selecting
(vote, choice and copy of what is kept). The limit is 3% of the rest, the model's own work. For decoding, the full cache
is that of a prompt of `--budget` tokens, and the steps of all caches take turns; the limit is its own time. Medians of
all; the prompt is random, only its length matters.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch

from app.settings import DEFAULT_MODEL
from benchmarks.timing import in_turns, now
from evals.kv_runs import WINDOW, Runner, print_table, write_json
from kv_compression import Full, KVCache, Observation, SnapKV, decode_step
from kv_compression.adapter import forward, recording
from kv_compression.prefill import in_chunks
from kv_compression.recorders import AttentionCall, QueryRecorder

CHUNK = 512


class TimedRecorder(QueryRecorder):
    """Knows how long it took."""

    seconds = 0.0

    def record(self, call: AttentionCall) -> None:
        """Copy the queries."""
        started = now()
        super().record(call)
        self.seconds += now() - started


def prefill(runner: Runner, prompt: Sequence[int]) -> tuple[KVCache, TimedRecorder, float]:
    """The cache, what was recorded, and the seconds of all but recording."""
    cache, recorder = runner.cache(), TimedRecorder(WINDOW)
    cache.reserve(len(prompt))
    started = now()
    with recording([recorder]):
        for chunk in in_chunks(prompt, CHUNK):
            forward(runner.model, cache, chunk)
    return cache, recorder, now() - started - recorder.seconds


@torch.inference_mode()
def overhead(runner: Runner, prompt: Sequence[int], policies: dict[str, SnapKV], repeats: int) -> dict[str, float]:
    """Median milliseconds: of the prefill, of recording, and of selecting by each policy."""
    taken: dict[str, list[float]] = {name: [] for name in ("prefill", "record", *policies)}
    for _ in range(repeats):
        cache, recorder, seconds = prefill(runner, prompt)
        taken["prefill"].append(seconds)
        taken["record"].append(recorder.seconds)
        seen = Observation(recorder.layers, WINDOW, len(prompt), cache.length)
        for name, policy in policies.items():
            started = now()
            cache.select(policy, seen)
            taken[name].append(now() - started)
    return {name: median(seconds) * 1000 for name, seconds in taken.items()}


@torch.inference_mode()
def decoding(runner: Runner, prompt: Sequence[int], policies: dict[str, SnapKV], steps: int) -> dict[str, float]:
    """Median milliseconds of a step: of a full cache as long as what the policies keep, and of theirs."""
    budget = next(iter(policies.values())).budget
    room = 2 + steps
    caches = {"full": runner.read(prompt[:budget], []).select(Full(), room=room)}
    reading = runner.read(prompt, policies.values())
    caches |= {name: reading.select(policy, room=room) for name, policy in policies.items()}
    return in_turns({name: partial(decode_step, runner.model, cache, 100) for name, cache in caches.items()}, steps)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runner = Runner.load(DEFAULT_MODEL)
    torch.manual_seed(0)
    prompt = torch.randint(100, 40_000, (options.tokens,)).tolist()
    allocations = runner.allocations(["uniform", "profile"])
    policies = {name: SnapKV(options.budget, allocation=allocation) for name, allocation in allocations.items()}
    reading = overhead(runner, prompt, policies, options.repeats)
    steps = decoding(runner, prompt, policies, options.steps)
    rows = {"full": ["", "", "", f"{steps['full']:.1f}", "1.00"]}
    for name in policies:
        added = reading["record"] + reading[name]
        rows[name] = [f"{reading['record']:.1f}", f"{reading[name]:.1f}", f"{added / reading['prefill']:.2%}"]
        rows[name] += [f"{steps[name]:.1f}", f"{steps[name] / steps['full']:.2f}"]
    print(f"prefill of {options.tokens} tokens: {reading['prefill']:.0f} ms")
    print_table(rows, ["snapkv", "record ms", "select ms", "of the prefill", "decode ms", "of the full's"])
    write_json(options.json, {"prefill_ms": reading, "decode_ms": steps})


if __name__ == "__main__":
    main()
