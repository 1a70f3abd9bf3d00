"""Decoding: tokens a second by context and batch, beside transformers' own, and beside the floor.

    python -m benchmarks.decode [--contexts 1024 4096 16384] [--batches 1 4 8] [--budget 1024] [--json FILE]

The floor of a step is reading the weights once and the working caches once; the speed of reading is measured in the
same run, by a sum over a buffer as large as the weights in float32. The engine holds its weights in half precision:
the last column compares with the floor of the bytes that are held, the one before with that of float32.

Speed only, quality aside: keys and values are random, and beyond the model's own context nothing changes but that.
`transformers` runs its fused attention (sdpa), weights in float32, on a batched `DynamicCache`, which is copied whole
for every token. `full` is this library's cache without compression. The others hold `budget` entries per head. All
take turns, and medians are compared. Where the full caches would be larger than `--largest` tokens in all, they are
left out. The SnapKV paper (https://arxiv.org/abs/2404.14469) reports 3.6 times the speed at 16K tokens.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from app.engine.loading import resolve_model
from app.engine.weights import HalfLinear
from app.settings import DEFAULT_MODEL, Settings
from benchmarks.random_caches import TOKEN, as_dynamic, random_cache
from benchmarks.timing import in_turns
from evals.kv_runs import Runner, print_table, write_json
from kv_compression import Knorm, KVCache, Piece, run_together

READING, TRANSFORMERS = "reading", "transformers"
HEADER = ["context, batch, cache", "tokens/s", "times faster", "ms", "of float32's", "of the floor"]


def weight_bytes(model: nn.Module) -> tuple[int, int]:
    """What a step reads of the weights: as they are held, and in float32. Only linear layers are read whole."""
    held = plain = 0
    for module in model.modules():
        if isinstance(module, nn.Linear):
            plain += (nbytes := 4 * module.in_features * module.out_features)
            held += nbytes // 2 if isinstance(module, HalfLinear) else nbytes
    return held, plain


def caches_of(runner: Runner, tokens: int, batch: int, budget: int, room: int, whole: bool) -> dict[str, list[KVCache]]:
    """By kind, one for every sequence of the batch."""
    allocations = runner.allocations(["uniform", "profile"])
    caches: dict[str, list[KVCache]] = {"full": [], **{name: [] for name in allocations}}
    for _ in range(batch):
        full = random_cache(runner, tokens, room)
        observation = runner.prefill(full, [TOKEN]).observation
        for name, allocation in allocations.items():
            caches[name].append(full.select(Knorm(budget, allocation=allocation), observation, room=room))
        if whole:
            caches["full"].append(full)
    return {name: held for name, held in caches.items() if held}


@torch.inference_mode()
def measure(
    runner: Runner, plain: PreTrainedModel, tokens: int, batch: int, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """By kind of cache: milliseconds of a step, and of its floors."""
    caches = caches_of(runner, tokens, batch, options.budget, options.steps + 3, tokens * batch <= options.largest)
    held, in_float32 = weight_bytes(runner.model)
    buffer = torch.ones(in_float32 // 4)
    runs: dict[str, Callable[[], object]] = {READING: buffer.sum}
    if "full" in caches:
        ids = torch.full((batch, 1), TOKEN)
        runs[TRANSFORMERS] = partial(plain, ids, cache=as_dynamic(caches["full"]), use_cache=True)
    for name, of_kind in caches.items():
        runs[name] = partial(run_together, runner.model, [Piece(cache, [TOKEN]) for cache in of_kind])
    taken = in_turns(runs, options.steps)
    per_byte = taken.pop(READING) / buffer.nbytes
    results = {}
    for name, ms in taken.items():
        cached = sum(cache.nbytes for cache in caches["full" if name == TRANSFORMERS else name])
        weights = in_float32 if name == TRANSFORMERS else held
        floors = {"floor_ms": per_byte * (weights + cached), "float32_floor_ms": per_byte * (in_float32 + cached)}
        results[name] = {"ms": ms, "tokens_per_s": 1000 * batch / ms, "cache_bytes": cached, **floors}
    return results


def rows_of(results: dict[str, dict[str, float]]) -> list[list[str]]:
    """Of the table, without the first column."""
    peer = results.get(TRANSFORMERS)
    return [
        [
            f"{found['tokens_per_s']:.1f}",
            "" if peer is None else f"{peer['ms'] / found['ms']:.2f}",
            f"{found['ms']:.1f}",
            f"{found['ms'] / found['float32_floor_ms']:.2f}",
            f"{found['ms'] / found['floor_ms']:.2f}",
        ]
        for found in results.values()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096, 16_384])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--largest", type=int, default=65_536, help="tokens of all full caches together")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    runner = Runner.load(options.model)
    place = resolve_model(Settings(model=options.model))
    plain = AutoModelForCausalLM.from_pretrained(place, dtype=runner.model.dtype, attn_implementation="sdpa").eval()
    torch.manual_seed(0)
    everything = []
    for tokens in options.contexts:
        for batch in options.batches:
            results = measure(runner, plain, tokens, batch, options)
            names = [f"{tokens}, {batch}, {name}" for name in results]
            print_table(dict(zip(names, rows_of(results), strict=True)), HEADER)
            everything.append({"context": tokens, "batch": batch, "threads": torch.get_num_threads(), "rows": results})
            write_json(options.json, everything)


if __name__ == "__main__":
    main()
