"""Decoding at a long context: transformers' own with its full cache, beside caches that were compressed.

    python -m benchmarks.long_decode [--tokens 16384] [--budgets 1024 2048] [--steps 10] [--json FILE]

Speed and bytes only, quality aside. The keys and values are random and were never computed from a prompt: a step costs
the same whatever they are. The default model's context (8,192 tokens) is exceeded, which changes the time of nothing.
transformers runs its fused attention (sdpa) on a `DynamicCache`, which is copied whole for every token; "full" is this
library's cache without compression, which is not. All take turns, one sequence each, and medians are compared. Bytes
are those of keys and values, and with this library of positions as well. For comparison, the SnapKV paper
(https://arxiv.org/abs/2404.14469) reports 3.6 times the speed and 8.2 times less memory at 16K tokens.
"""

import argparse
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import DynamicCache, PreTrainedModel

from app.settings import DEFAULT_MODEL
from benchmarks.timing import in_turns
from evals.kv_runs import Runner, print_table, write_json
from kv_compression import Full, Knorm, KVCache, LayerEntries, Segment, decode_step

TRANSFORMERS = "transformers"
TOKEN = 7  # any one


def random_cache(runner: Runner, tokens: int) -> KVCache:
    """Of that many tokens, with random keys and values of the model's shapes."""
    probe = runner.cache()
    runner.prefill(probe, [TOKEN])
    layers = []
    for layer in probe.segment(0).layers:
        heads, head_dim, value_dim = layer.dims
        keys, values = torch.randn(heads, tokens, head_dim), torch.randn(heads, tokens, value_dim)
        layers.append(LayerEntries.stack(keys, values, torch.arange(tokens, dtype=torch.int32).repeat(heads, 1)))
    model = runner.model
    return KVCache.from_segments(
        model.config, [Segment(0, tokens, layers)], device=model.device, dtype=model.dtype, room=1
    )


def as_dynamic(cache: KVCache) -> tuple[DynamicCache, int]:
    """The same in transformers' own cache, and its bytes."""
    dynamic, nbytes = DynamicCache(), 0
    for index, layer in enumerate(cache.layers):
        held = layer.buffer.entries
        dense = None if held is None else held.dense()
        assert dense is not None, "every head holds every token"
        dynamic.update(dense.keys[None].contiguous(), dense.values[None].contiguous(), index)
        nbytes += dense.keys.nbytes + dense.values.nbytes
    return dynamic, nbytes


def plain_model(model: PreTrainedModel) -> PreTrainedModel:
    """A model on the same weights with transformers' own attention."""
    plain = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    plain.set_attn_implementation("sdpa")
    return plain


@torch.inference_mode()
def measure(runner: Runner, tokens: int, budgets: list[int], steps: int) -> dict[str, dict[str, float]]:
    """By row, milliseconds of a token and bytes of its cache."""
    cache, room = random_cache(runner, tokens), steps + 2
    run = runner.prefill(cache, [TOKEN])
    (dynamic, dynamic_bytes), plain = as_dynamic(cache), plain_model(runner.model)
    caches = {"full": cache.select(Full(), run.observation, room=room)}
    for name, allocation in runner.allocations(["uniform", "profile"]).items():
        for budget in budgets:
            policy = Knorm(budget, allocation=allocation)
            caches[f"{budget} {name}"] = cache.select(policy, run.observation, room=room)
    del cache
    token = torch.tensor([[TOKEN]], device=plain.device)
    runs: dict[str, Callable[[], object]] = {TRANSFORMERS: partial(plain, token, cache=dynamic, use_cache=True)}
    runs |= {name: partial(decode_step, runner.model, held, TOKEN) for name, held in caches.items()}
    nbytes = {TRANSFORMERS: dynamic_bytes, **{name: held.nbytes for name, held in caches.items()}}
    return {name: {"ms": ms, "bytes": nbytes[name]} for name, ms in in_turns(runs, steps).items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--budgets", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runner = Runner.load(DEFAULT_MODEL)
    torch.manual_seed(0)
    results = measure(runner, options.tokens, options.budgets, options.steps)
    peer = results[TRANSFORMERS]
    rows = {
        name: [
            f"{1000 / found['ms']:.1f}",
            f"{peer['ms'] / found['ms']:.2f}",
            f"{found['bytes'] / 2**20:.0f}",
            f"{peer['bytes'] / found['bytes']:.1f}",
        ]
        for name, found in results.items()
    }
    print_table(rows, ["cache", "tokens/s", "times faster", "MiB", "times smaller"])
    write_json(options.json, results)


if __name__ == "__main__":
    main()
