"""Timing of things that take turns, so that other work on the machine slows all of them alike."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch


def now() -> float:
    """Seconds, when all that was asked of the device is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def in_turns(runs: Mapping[str, Callable[[], object]], repeats: int, warm: int = 2) -> dict[str, float]:
    """Median milliseconds by name; the first `warm` turns are not counted."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(warm + repeats):
        for name, run in runs.items():
            started = now()
            run()
            taken[name].append((now() - started) * 1000)
    return {name: median(times[warm:]) for name, times in taken.items()}
