"""Follow-ups on real papers: what does an archive of everything keep that an archive of the working cache loses?

    python -m evals.followups --data covidqa.jsonl [--papers 3] [--questions 5] [--json FILE]

Each paper is one session. Question 1 comes with the paper, the others as later turns, each with the gold answer as its
answer. Per turn: the mean negative log-likelihood per token of the gold answer (lower is better), decoded from

- full: the whole cache,
- archive=full: a working cache that SnapKV selects for this question out of everything,
- archive=working: what SnapKV kept of the turns before, with this question appended, selected again.

The bytes are those stored after the last turn. A line of the data file is {"text", "questions": [{"question",
"answers": [{"text"}]}]}.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from app.settings import DEFAULT_MODEL
from evals.kv_runs import MODEL_HELP, WINDOW, Runner, print_table, write_json
from kv_compression import Allocation, Full, KVCache, Policy, Prefill, SnapKV

KERNEL = 15
ANSWER_TOKENS = 40


class Session:
    """One row's session on one paper: the cache to which turns are appended, and how the next one is made of it."""

    def __init__(self, runner: Runner, policy: Policy, archive: str, whole: KVCache, run: Prefill) -> None:
        self.runner, self.policy, self.archive = runner, policy, archive
        self.stored = whole.copy()
        self._run = run

    def ask(self, question: str) -> None:
        """A later turn's prompt."""
        token_ids = self.runner.later_question(f"Question: {question}")
        self._run = self.runner.prefill(self.stored, token_ids)

    def answer(self, answer: Sequence[int]) -> float:
        """The answer's likelihood from this turn's working cache; what is stored goes on from there."""
        working = self.stored.select(self.policy, self._run.observation, room=len(answer))
        loss = self.runner.answer_nll(working, self._run.logits, answer)
        self.stored = working if self.archive == "working" else self._appended(working)
        return loss

    def _appended(self, working: KVCache) -> KVCache:
        segments = [self.stored.segment(0), working.segment(self.stored.length)]
        model = self.runner.model
        return KVCache.from_segments(model.config, segments, device=model.device, dtype=model.dtype)


def rows(budgets: Sequence[int], allocations: Mapping[str, Allocation]) -> dict[str, tuple[Policy, str]]:
    """Row name -> policy of the working cache, and what is stored."""
    table: dict[str, tuple[Policy, str]] = {"full": (Full(), "full")}
    for archive in ("full", "working"):
        for budget, (how, allocation) in product(budgets, allocations.items()):
            policy = SnapKV(budget, WINDOW, KERNEL, allocation=allocation)
            table[f"archive={archive}, snapkv {budget} {how}"] = (policy, archive)
    return table


def papers(path: Path, count: int, questions: int) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Text, and pairs of a question and its gold answer."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            paper = json.loads(line)
            asked = [(item["question"], item["answers"][0]["text"]) for item in paper["questions"]][:questions]
            if 8_000 < len(paper["text"]) < 22_000 and len(asked) == questions:
                yield paper["text"], asked
                count -= 1
            if count == 0:
                return


def measure(
    runner: Runner, text: str, asked: Sequence[tuple[str, str]], table: dict[str, tuple[Policy, str]], max_tokens: int
) -> dict[str, tuple[list[float], int]]:
    """Row name -> loss of every question, and bytes stored at the end."""
    prompt = runner.opening(text)[:max_tokens] + runner.question(asked[0][0])
    whole = runner.cache()
    run = runner.prefill(whole, prompt)
    measured = {}
    for name, (policy, archive) in table.items():
        session, losses = Session(runner, policy, archive, whole, run), []
        for turn, (question, answer) in enumerate(asked):
            if turn:
                session.ask(question)
            losses.append(session.answer(runner.encode(answer)[:ANSWER_TOKENS]))
        measured[name] = (losses, session.stored.nbytes)
    print(f"a paper of {len(prompt)} tokens is done", file=sys.stderr)
    return measured


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help=MODEL_HELP)
    parser.add_argument("--data", required=True, type=Path, help="papers with questions, JSON lines")
    parser.add_argument("--papers", type=int, default=3)
    parser.add_argument("--questions", type=int, default=5, help="per paper")
    parser.add_argument("--budgets", nargs="+", type=int, default=[512, 1024, 2048], help="positions kept per KV head")
    parser.add_argument("--max-tokens", type=int, default=5500, help="longer papers are cut")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()

    runner = Runner.load(options.model)
    table = rows(options.budgets, runner.allocations(["uniform", "profile"]))
    results = [
        measure(runner, text, asked, table, options.max_tokens)
        for text, asked in papers(options.data, options.papers, options.questions)
    ]
    means = {
        name: [
            f"{fmean(result[name][0][0] for result in results):.3f}",
            f"{fmean(loss for result in results for loss in result[name][0][1:]):.3f}",
            f"{fmean(result[name][1] for result in results) / 2**20:.1f}",
        ]
        for name in table
    }
    print_table(means, ["cache", "question 1", f"questions 2-{options.questions}", "MiB stored"])
    write_json(options.json, {"options": {key: str(value) for key, value in vars(options).items()}, "papers": results})


if __name__ == "__main__":
    main()
