"""Memory of a long prefill: transformers' own with a full cache, in chunks, and layer by layer.

    python -m benchmarks.prefill_memory [--tokens 8000] [--budget 1024] [--json FILE]

Each way runs in a process of its own, and the figure is the peak of the whole process (VmHWM, so on Linux only) above
the same process with the weights loaded and one token run. The prompt is random: only its length matters. The limit for
layer by layer is a quarter of transformers' own.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from app.engine.memory import bound_arenas, give_back
from app.settings import DEFAULT_MODEL
from evals.kv_runs import Runner, print_table, write_json
from kv_compression import LayerwisePrefill, SnapKV, Uniform

WAYS = ("transformers", "chunked", "by layer")


def memory_mb(field: str) -> float:
    """VmRSS, what the process holds, or VmHWM, the most that it held since the last `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


def forget_peak() -> None:
    """From now on, VmHWM is of what comes."""
    give_back()
    Path("/proc/self/clear_refs").write_text("5")


@torch.inference_mode()
def measure(way: str, tokens: int, budget: int) -> dict[str, float]:
    """Run one way in this process."""
    bound_arenas()
    runner = Runner.load(DEFAULT_MODEL)
    model, policy = runner.model, SnapKV(budget, allocation=runner.profile or Uniform())
    torch.manual_seed(0)
    prompt = torch.randint(100, 40_000, (tokens,)).tolist()
    runner.prefill(runner.cache(), prompt[:1])
    forget_peak()
    before, started = memory_mb("VmRSS"), time.perf_counter()
    if way == "transformers":
        model.set_attn_implementation("sdpa")
        kept: object = model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
    elif way == "chunked":
        cache = runner.cache()
        cache.reserve(tokens)
        run = runner.prefill(cache, prompt, [policy])
        kept = cache.select(policy, run.observation)
    else:
        by_layer = LayerwisePrefill(model, prompt, policy)
        while not by_layer.step():
            pass
        kept = by_layer.cache
    seconds = time.perf_counter() - started
    del kept
    return {"before_mb": before, "above_mb": memory_mb("VmHWM") - before, "seconds": seconds}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way, options.tokens, options.budget)))
        return
    sizes = ["--tokens", str(options.tokens), "--budget", str(options.budget)]
    results = {}
    for way in WAYS:
        command = [sys.executable, "-m", "benchmarks.prefill_memory", "--way", way, *sizes]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        results[way] = json.loads(done.stdout.splitlines()[-1])
    whole = results["transformers"]
    rows = {
        way: [
            f"{found['above_mb']:.0f}",
            f"{found['above_mb'] / whole['above_mb']:.2f}",
            f"{found['seconds']:.1f}",
            f"{found['seconds'] / whole['seconds']:.2f}",
        ]
        for way, found in results.items()
    }
    print_table(rows, ["prefill", "MiB above", "of the first", "seconds", "of the first"])
    write_json(options.json, results)


if __name__ == "__main__":
    main()
