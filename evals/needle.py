"""A number hidden in essays, asked for at the end: how often is it found, per policy, budget and length?

    python -m evals.needle [--haystack DIR] [--lengths 1000 2000] [--budgets 256 512 1024] [--json FILE]

The haystack is a folder of .txt and .md files, used in the order of their names. One draw per depth; each prompt is
read once, and all policies select from the same cache.
"""

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from app.settings import DEFAULT_MODEL
from evals.kv_runs import MODEL_HELP, Runner, print_table, write_json
from kv_compression import Allocation, Full, Policy, SnapKV, StreamingLLM

WINDOW = 32
QUESTION = "What is the secret number of the {name}?"
NEEDLE = " The secret number of the {name} is {number}. "
NAMES = ("lighthouse", "harbour", "orchard", "library", "station", "theatre", "garden", "museum", "bakery", "mill")


def policies(
    budgets: Sequence[int], kernels: Sequence[int], allocations: Mapping[str, Allocation]
) -> dict[str, Policy]:
    """Row name -> policy."""
    rows: dict[str, Policy] = {"full": Full()}
    for budget in budgets:
        for kernel, (how, allocation) in product(kernels, allocations.items()):
            rows[f"snapkv {budget} k{kernel}{how}"] = SnapKV(budget, WINDOW, kernel, allocation=allocation)
        rows[f"streaming_llm {budget}"] = StreamingLLM(budget)
    return rows


def haystack(folder: Path) -> list[str]:
    """Sentences of all texts."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*")) if path.suffix in (".txt", ".md")]
    if not texts:
        raise SystemExit(f"{folder} has no .txt or .md files.")
    return [sentence for text in texts for sentence in " ".join(text.split()).split(". ")]


def prompt(
    runner: Runner, sentences: Sequence[str], length: int, depth: float, draw: random.Random
) -> tuple[list[int], str]:
    """Token ids of a prompt of about `length` tokens with a needle at `depth` (0 to 1), and the number to find."""
    name, number = draw.choice(NAMES), str(draw.randint(10_000, 99_999))
    question = runner.question(QUESTION.format(name=name))
    needle = runner.encode(NEEDLE.format(name=name, number=number))
    start = draw.randrange(len(sentences) // 2)
    text = runner.opening(". ".join(sentences[start : start + length // 4]))
    room = length - len(question) - len(needle)
    at = 20 + round(depth * (room - 20))
    return [*text[:at], *needle, *text[at:room], *question], number


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help=MODEL_HELP)
    parser.add_argument("--haystack", default=Path("samples"), type=Path, help="folder of texts")
    parser.add_argument("--lengths", nargs="+", type=int, default=[1000, 2000], help="prompt lengths in tokens")
    parser.add_argument("--budgets", nargs="+", type=int, default=[256, 512, 1024], help="positions kept per KV head")
    parser.add_argument("--kernels", nargs="+", type=int, default=[7, 15], help="SnapKV's pooling kernels")
    parser.add_argument("--depths", type=int, default=10, help="draws per length, at even depths")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()

    runner, sentences = Runner.load(options.model), haystack(options.haystack)
    rows = policies(options.budgets, options.kernels, runner.allocations())
    found = {name: [0] * len(options.lengths) for name in rows}
    draw = random.Random(options.seed)
    for column, length in enumerate(options.lengths):
        for step in range(options.depths):
            token_ids, number = prompt(runner, sentences, length, (step + 0.5) / options.depths, draw)
            cache = runner.cache()
            run = runner.prefill(cache, token_ids, WINDOW)
            for name, policy in rows.items():
                working = cache.select(policy, run.observation, room=16)
                found[name][column] += number in runner.answer(working, run.logits, max_tokens=16)
            print(f"{length} tokens, depth {step + 1} of {options.depths} is done", file=sys.stderr)
    print(f"found of {options.depths}")
    print_table(found, ["policy", *(f"{length} tokens" for length in options.lengths)])
    write_json(options.json, {"options": {key: str(value) for key, value in vars(options).items()}, "found": found})


if __name__ == "__main__":
    main()
