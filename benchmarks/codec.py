"""Encoding, decoding and restoring stored segments, beside plain copies of the same tensors in the same run.

    python -m benchmarks.codec [--text FILE] [--tokens 4096] [--budget 1024] [--repeats 7] [--json FILE]

The cache is the default model's after it read the text: whole, and as SnapKV leaves it within the head profile (heads
of different lengths), each in float32 and in bfloat16. GB/s are bytes of keys, values and positions in memory; behind
them is the share of the speed of a copy into memory that is there already. The copy into new memory is the limit of all
that makes its tensors anew, as decoding and restoring do. All take turns, and the fastest run of each counts: other
work on the machine only slows them. `bytes` are those stored, as a share; `off` is the relative root mean square error.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from app.settings import DEFAULT_MODEL
from evals.kv_runs import MODEL_HELP, Runner, print_table, write_json
from kv_compression import KVCache, LayerEntries, Segment, SnapKV, Storage, decode_segment, encode_segment
from kv_compression.storage import FORMATS

STORAGES = {
    name + ", compressed" * compress: Storage(name, compress=compress) for compress in (False, True) for name in FORMATS
}
STEPS = ("encode", "decode", "restore")


@dataclass(frozen=True)
class Result:
    """Of one segment: its bytes, the fastest seconds of every (format, step), and per format stored share and error."""

    cache: str
    bytes: int
    seconds: dict[str, dict[str, float]]
    stored: dict[str, float]
    off: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help=MODEL_HELP)
    parser.add_argument("--text", type=Path, default=Path("samples/handbook.md"))
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runner = Runner.load(arguments.model)
    results = []
    for title, segment in segments(runner, arguments.text, arguments.tokens, arguments.budget).items():
        for dtype in (torch.float32, torch.bfloat16):
            layers = [replace(each, keys=each.keys.to(dtype), values=each.values.to(dtype)) for each in segment.layers]
            name = f"{title}, {str(dtype).removeprefix('torch.')}"
            results.append(measure(runner, name, replace(segment, layers=layers), arguments.repeats))
            show(results[-1])
    write_json(arguments.json, [asdict(result) for result in results])


@torch.inference_mode()
def segments(runner: Runner, text: Path, tokens: int, budget: int) -> dict[str, Segment]:
    """All entries after the text, and those that are chosen of them."""
    cache = runner.cache()
    token_ids = runner.opening(text.read_text(encoding="utf-8"))[:tokens]
    policy = SnapKV(budget, allocation=runner.allocations(["profile"])["profile"])
    run = runner.prefill(cache, token_ids, [policy])
    chosen = cache.select(policy, run.observation)
    return {f"{len(token_ids)} tokens": cache.segment(0), f"{budget} kept of them": chosen.segment(0)}


def measure(runner: Runner, title: str, segment: Segment, repeats: int) -> Result:
    """All formats and the copies, in turns."""
    tensors = [tensor for layer in segment.layers for head in layer for tensor in (head.keys, head.values)]
    copies = [tensor.clone() for tensor in tensors]
    runs: dict[str, dict[str, Callable[[], object]]] = {
        "copy": {
            "copy": lambda: [copy.copy_(tensor) for copy, tensor in zip(copies, tensors, strict=True)],
            "new": lambda: anew(segment),
        }
    }
    stored, off = {}, {}
    for name, storage in STORAGES.items():
        chunks = encode_segment(segment, "f", storage=storage)
        stored[name] = sum(map(len, chunks)) / segment.nbytes
        off[name] = error(segment, decode_segment(chunks, "f"))
        runs[name] = steps(runner, segment, storage, chunks)
    seconds = {name: dict.fromkeys(of_format, float("inf")) for name, of_format in runs.items()}
    for _ in range(repeats):
        for name, of_format in runs.items():
            for step, run in of_format.items():
                started = time.perf_counter()
                run()
                seconds[name][step] = min(seconds[name][step], time.perf_counter() - started)
    return Result(title, segment.nbytes, seconds, stored, off)


def anew(segment: Segment) -> list[LayerEntries]:
    """A copy that has its own memory."""
    layers = [layer.empty() for layer in segment.layers]
    for layer, source in zip(layers, segment.layers, strict=True):
        layer.write(source)
    return layers


def steps(
    runner: Runner, segment: Segment, storage: Storage, chunks: Sequence[bytes]
) -> dict[str, Callable[[], object]]:
    """What is timed of a format."""
    dtype, config = segment.layers[0].keys.dtype, runner.model.config
    return {
        "encode": lambda: encode_segment(segment, "f", storage=storage),
        "decode": lambda: decode_segment(chunks, "f"),
        "restore": lambda: KVCache.restore(config, [chunks], "f", tokens=segment.stop, device="cpu", dtype=dtype),
    }


def error(segment: Segment, decoded: Segment) -> float:
    """Root mean square of the differences, as a share of that of the numbers."""
    wrong = whole = 0.0
    for before, after in zip(segment.layers, decoded.layers, strict=True):
        for old, new in zip(before, after, strict=True):
            for one, other in ((old.keys, new.keys), (old.values, new.values)):
                wrong += float((one.float() - other.float()).square().sum())
                whole += float(one.float().square().sum())
    return float((wrong / whole) ** 0.5)


def show(result: Result) -> None:
    """Print a table."""
    copy, new = result.seconds["copy"].values()
    size = result.bytes / 1e9
    print(f"\n{result.cache}: {size * 1000:.1f} MB, copied at {size / copy:.1f} GB/s, to new memory {size / new:.1f}")
    rows = {}
    for name in STORAGES:
        speeds = [f"{size / taken:.2f} ({copy / taken:.2f})" for taken in result.seconds[name].values()]
        rows[name] = [*speeds, f"{result.stored[name]:.3f}", f"{result.off[name]:.5f}"]
    print_table(rows, ["format", *(f"{step} GB/s" for step in STEPS), "bytes", "off"])


if __name__ == "__main__":
    main()
