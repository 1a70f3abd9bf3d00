"""What the evaluations of KV compression share: a model, a prompt read once, answers from caches, tables and files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from app.engine.loading import load_model
from app.engine.policy import find_profile
from app.settings import Settings
from kv_compression import Allocation, KVCache, Prefill, Profile, Uniform, decode_step

MODEL_HELP = "as SNAPRAG_MODEL: a hub id, a local folder or the default model's name"
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

    def allocations(self) -> dict[str, Allocation]:
        """Name -> the allocations to compare: uniform, and the profile if the model has one."""
        return {"": Uniform()} | ({} if self.profile is None else {" by the profile": self.profile})

    def cache(self) -> KVCache:
        """An empty cache."""
        return KVCache(self.model.config, device=self.model.device, dtype=self.model.dtype)

    def prefill(self, cache: KVCache, token_ids: Sequence[int], window: int) -> Prefill:
        """Run all of them."""
        run = Prefill(self.model, cache, token_ids, window=window)
        while not run.step():
            pass
        return run

    def answer(self, cache: KVCache, logits: torch.Tensor, max_tokens: int) -> str:
        """Greedy. The tokens are added to the cache."""
        token_ids: list[int] = []
        for _ in range(max_tokens):
            token = int(logits.argmax())
            if token == self.tokenizer.eos_token_id:
                break
            token_ids.append(token)
            logits = decode_step(self.model, cache, token)
        return str(self.tokenizer.decode(token_ids))

    def answer_nll(self, cache: KVCache, logits: torch.Tensor, answer: Sequence[int]) -> float:
        """Mean negative log-likelihood per token of the answer. Its tokens are added to the cache."""
        losses = []
        for token in answer:
            losses.append(-float(logits.log_softmax(dim=-1)[token]))
            logits = decode_step(self.model, cache, token)
        return sum(losses) / len(losses)


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
