"""What the evaluations of KV compression share: a model, a prompt read once, answers from caches, tables and files."""

import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from app.engine.loading import load_model
from app.engine.policy import find_profile
from app.engine.tuning import GO_ON, REQUEST
from app.settings import DEFAULT_MODEL, Settings
from evals.scores import holds
from kv_compression import (
    Allocation,
    HeadAdaptive,
    KVCache,
    KVzip,
    Observation,
    Policy,
    Prefill,
    Profile,
    Pyramid,
    Uniform,
    decode_step,
    reconstruct,
)
from kv_compression.adapter import forward

MODEL_HELP = "as SNAPRAG_MODEL: a hub id, a local folder or the default model's name"
WINDOW = 32
ALLOCATIONS: dict[str, Allocation] = {
    "uniform": Uniform(),
    "pyramid": Pyramid(),
    "layer": HeadAdaptive("layer"),
    "model": HeadAdaptive("model"),
}
SYSTEM = "Answer the question using only the text."


@dataclass(frozen=True)
class Runner:
    """A model with its tokenizer. Prompts are in the form of SmolLM2's chat template, which many models share."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    profile: Profile | None

    @classmethod
    def load(cls, name: str) -> "Runner":
        """A name as SNAPRAG_MODEL takes it, with the model's head profile if there is one."""
        settings = Settings(model=name)
        loaded = load_model(settings)
        return cls(loaded.model, loaded.tokenizer, find_profile(settings, loaded.weights))

    def encode(self, text: str) -> list[int]:
        """Token ids, none added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def opening(self, text: str) -> list[int]:
        """The prompt up to and with the text."""
        return self.encode(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{text}")

    def question(self, question: str) -> list[int]:
        """The end of a prompt that asks about a text before it."""
        return self.encode(f"\n\nQuestion: {question}<|im_end|>\n<|im_start|>assistant\n")

    def later_question(self, question: str) -> list[int]:
        """A further turn that asks, after an answer."""
        return self.encode(f"<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")

    def allocations(self, names: Sequence[str]) -> dict[str, Allocation]:
        """Those of `ALLOCATIONS` that are named. SystemExit for a model without a head profile."""
        known = ALLOCATIONS | ({} if self.profile is None else {"profile": self.profile})
        if "profile" in names and self.profile is None:
            raise SystemExit("the model has no head profile: run 'snaprag tune', or leave out --allocations profile")
        return {name: known[name] for name in names}

    def cache(self) -> KVCache:
        """An empty cache."""
        return KVCache(self.model.config, device=self.model.device, dtype=self.model.dtype)

    def prefill(self, cache: KVCache, token_ids: Sequence[int], policies: Collection[Policy] = ()) -> Prefill:
        """Run all of them, and observe what the policies choose by."""
        observe = {what for policy in policies for what in policy.observe}
        run = Prefill(self.model, cache, token_ids, window=WINDOW, observe=observe)
        while not run.step():
            pass
        return run

    def read(self, token_ids: Sequence[int], policies: Collection[Policy]) -> "Reading":
        """Read a text once for all these policies."""
        cache = self.cache()
        run = self.prefill(cache, token_ids, policies)
        needed = any(isinstance(policy, KVzip) for policy in policies)
        repeated = reconstruct(self.model, cache, token_ids, *self.requests()) if needed else None
        return Reading(cache, run.logits, run.observation, repeated)

    def requests(self) -> tuple[list[int], list[int]]:
        """The tokens that ask to repeat a text, and to go on repeating it."""
        return self.encode(f"{REQUEST}<|im_end|>\n<|im_start|>assistant\n"), self.encode(GO_ON)

    def answer(self, cache: KVCache, logits: torch.Tensor, max_tokens: int, until: Sequence[str] = ()) -> str:
        """Greedy, until it holds all of `until` (whatever their case) if any. The tokens are added to the cache."""
        token_ids: list[int] = []
        for _ in range(max_tokens):
            token = int(logits.argmax())
            if token == self.tokenizer.eos_token_id:
                break
            token_ids.append(token)
            if until and holds(str(self.tokenizer.decode(token_ids)), until) == len(until):
                break
            logits = decode_step(self.model, cache, token)
        return str(self.tokenizer.decode(token_ids))

    def nll(self, cache: KVCache, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """Mean negative log-likelihood per token of the answer after the prompt, in one forward.

        The tokens of both are added to the cache.
        """
        logits = forward(self.model, cache, [*prompt, *answer], keep=len(answer) + 1)
        return _mean_loss(logits[:-1], answer)

    def answer_nll(self, cache: KVCache, logits: torch.Tensor, answer: Sequence[int]) -> float:
        """The same after a prompt that the cache holds, whose last logits [vocab] are given."""
        behind = forward(self.model, cache, answer, keep=len(answer))[:-1]
        return _mean_loss(torch.cat([logits[None], behind]), answer)


@dataclass(frozen=True)
class Reading:
    """A text that was read once: its whole cache, the logits after it, and what policies choose by."""

    cache: KVCache
    logits: torch.Tensor
    observation: Observation
    repeated: Observation | None

    def select(self, policy: Policy, *, room: int) -> KVCache:
        """What the policy keeps, in a new cache."""
        seen = self.repeated if isinstance(policy, KVzip) and self.repeated is not None else self.observation
        return self.cache.select(policy, seen, room=room)


def _mean_loss(logits: torch.Tensor, answer: Sequence[int]) -> float:
    return float(cross_entropy(logits, torch.tensor(list(answer), device=logits.device)))


def arguments(description: str | None, budgets: Sequence[int]) -> ArgumentParser:
    """The options that the evaluations of KV compression share."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help=MODEL_HELP)
    parser.add_argument("--budgets", nargs="+", type=int, default=list(budgets), help="positions kept per KV head")
    parser.add_argument(
        "--allocations",
        nargs="+",
        choices=[*ALLOCATIONS, "profile"],
        default=["profile"],
        help="of the budget to heads",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--plot", type=Path, help="PNG file for the plot")
    return parser


def as_json(options: Namespace) -> dict[str, str]:
    """The options of a run, for its results."""
    return {key: str(value) for key, value in vars(options).items()}


def print_table(rows: Mapping[str, Sequence[object]], header: Sequence[str]) -> None:
    """A table with the rows' names in front."""
    width = max(len(name) for name in [header[0], *rows])
    print(header[0].ljust(width), *(f"{title:>14}" for title in header[1:]), flush=True)
    for name, values in rows.items():
        print(name.ljust(width), *(f"{value:>14}" for value in values), flush=True)


def write_json(path: Path | None, content: object) -> None:
    """Write the results, if a file was asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
