"""What the evaluations of KV compression share: a model, a prompt read once, answers from caches, tables and files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from kv_compression import KVCache, Prefill, attach, decode_step

SYSTEM = "Answer the question using only the text."


@dataclass(frozen=True)
class Runner:
    """A model with its tokenizer. Prompts are in the form of SmolLM2's chat template, which many models share."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def load(cls, folder: str) -> "Runner":
        """From a folder or a hub id, in bfloat16."""
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        attach(model)
        return cls(model, AutoTokenizer.from_pretrained(folder))

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
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
