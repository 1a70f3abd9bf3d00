"""Prompt-lookup decoding beside plain greedy decoding, on a compressed cache and on a full one.

    python -m benchmarks.lookup [--model NAME] [--budget 1024] [--json FILE]

The model reads the beginning of samples/handbook.md and is asked to repeat sections of it, with the section's first
words given: there a draft of what followed these words in the prompt is often right. SnapKV chooses by the request,
within the head profile if the model has one. All ways take turns, section by section; reading the prompt is not
counted. "same" is the part of the answers that are the greedy ones of the same cache, token for token; "right" the
part of what was asked for that an answer repeats before its first wrong token.
"""

import argparse
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import torch

from app.settings import DEFAULT_MODEL
from evals.kv_runs import MODEL_HELP, Runner, print_table, write_json
from kv_compression import Full, KVCache, Policy, SnapKV, Uniform, compress

HANDBOOK = Path("samples/handbook.md")
CHARACTERS = 10_000  # as far as the default model follows
SECTIONS = (1, 2, 3, 4, 5)
BEGUN = 12  # tokens of a section that the prompt gives
ANSWER = 64
DRAFT = 10
OPTIONS: dict[str, dict[str, int]] = {"greedy": {}, "lookup": {"prompt_lookup_num_tokens": DRAFT}}


@dataclass
class Way:
    """What was measured of one way to decode."""

    answers: list[list[int]] = field(default_factory=list)
    forwards: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(map(len, self.answers))

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def requests(runner: Runner, text: str) -> Iterator[tuple[list[int], list[int]]]:
    """What comes after the text in a prompt, and the tokens that are to follow."""
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, body = section.partition("\n\n")
        if int(title.split(".")[0]) in SECTIONS:
            words = runner.encode(body)
            yield [*runner.question(f'Repeat the section "{title}" word for word.'), *words[:BEGUN]], words[BEGUN:]


def generate(runner: Runner, prompt: list[int], cache: KVCache, way: Way, **options: int) -> None:
    """One greedy answer, added to what the way has."""
    forwards = runner.model.register_forward_pre_hook(lambda *_: setattr(way, "forwards", way.forwards + 1))
    ids = torch.tensor([prompt], device=runner.model.device)
    started = time.perf_counter()
    settings = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "max_new_tokens": ANSWER}
    output = runner.model.generate(ids, cache=cache, **settings, **options)  # type: ignore[operator]
    way.seconds += time.perf_counter() - started
    forwards.remove()
    way.answers.append(output[0, len(prompt) :].tolist())


def right(answers: list[list[int]], expected: list[list[int]]) -> float:
    """Tokens that are right before the first wrong one, of all that were asked for."""
    agreeing = [
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(answer, words, strict=False)))
        for answer, words in zip(answers, expected, strict=True)
    ]
    return sum(agreeing) / sum(min(ANSWER, len(words)) for words in expected)


def measure(runner: Runner, text: str, policies: Mapping[str, Policy]) -> tuple[dict[str, Way], list[list[int]]]:
    """Every way, with the answers in one order, and what they should have been."""
    opening, read = runner.opening(text), runner.cache()
    runner.prefill(read, opening)
    ways = {f"{name}, {how}": Way() for name in policies for how in OPTIONS}
    expected = []
    for request, words in requests(runner, text):
        prompt = [*opening, *request]
        expected.append(words)
        for name, policy in policies.items():
            kept = compress(runner.model, torch.tensor([prompt]), policy, read.copy(room=len(request)))
            for how, options in OPTIONS.items():
                generate(runner, prompt, kept.copy(room=ANSWER + DRAFT), ways[f"{name}, {how}"], **options)
    print(f"{len(opening)} tokens before the requests; {len(expected)} answers of at most {ANSWER} tokens")
    return ways, expected


def figures(way: Way, greedy: Way, first: Way, expected: list[list[int]]) -> dict[str, float]:
    """Of one way beside greedy decoding on the same cache, and on the full one."""
    return {
        "tokens_per_s": way.rate,
        "of_its_greedy": way.rate / greedy.rate,
        "of_full_greedy": way.rate / first.rate,
        "tokens_per_forward": way.tokens / way.forwards,
        "same": sum(mine == its for mine, its in zip(way.answers, greedy.answers, strict=True)) / len(expected),
        "right": right(way.answers, expected),
    }


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help=MODEL_HELP)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runner = Runner.load(arguments.model)
    snapkv = SnapKV(arguments.budget, allocation=runner.profile or Uniform())
    policies: dict[str, Policy] = {"full": Full(), f"SnapKV {arguments.budget}": snapkv}
    ways, expected = measure(runner, HANDBOOK.read_text(encoding="utf-8")[:CHARACTERS], policies)
    results = {
        name: figures(way, ways[f"{name.split(',')[0]}, greedy"], ways["full, greedy"], expected)
        for name, way in ways.items()
    }
    rows = {name: [f"{figure:.2f}" for figure in found.values()] for name, found in results.items()}
    print_table(rows, ["cache", *next(iter(results.values()))])
    write_json(arguments.json, results)


if __name__ == "__main__":
    main()
