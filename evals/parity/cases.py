"""Models and texts to compare on: a real model reading text, and small random ones that are read noise."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from app.engine.tuning import GO_ON, REQUEST

VOCABULARY = 512
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}
SPREAD = 0.3  # random weights this large attend sharply
RANDOM_MODELS = ("llama", "qwen3")
"""Qwen3 normalizes its queries and keys."""


@dataclass(frozen=True)
class Case:
    """A model's folder, the text it reads, and the requests of KVzip; as token ids."""

    name: str
    model: str
    text: list[int]
    request: list[int]
    go_on: list[int]


def cases(model: Path, text: str, tokens: int, seed: int, folder: Path) -> Iterator[Case]:
    """So many tokens of the text for the model, then noise for random models, which are written to `folder`."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    token_ids, request, go_on = (tokenizer.encode(part, add_special_tokens=False) for part in (text, REQUEST, GO_ON))
    if len(token_ids) < tokens:
        raise SystemExit(f"the text has {len(token_ids)} tokens, not {tokens}")
    draw = random.Random(seed)
    start = draw.randrange(len(token_ids) - tokens + 1)
    yield Case(model.name, str(model), token_ids[start : start + tokens], request, go_on)
    for kind in RANDOM_MODELS:
        place = folder / kind
        _random_model(kind, seed).save_pretrained(place)
        tokenizer.save_pretrained(place)  # kvpress wants one, though it encodes nothing that is used
        noise = draw.choices(range(VOCABULARY), k=tokens)
        yield Case(f"random-{kind}", str(place), noise, noise[:8], noise[8:16])


def _random_model(kind: str, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = CONFIG_MAPPING[kind].from_dict(SIZES | {"initializer_range": SPREAD})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():
        if weight.ndim == 1:  # of the norms: where they are all 1, a normalized key has the same length everywhere
            torch.nn.init.normal_(weight, mean=1.0, std=SPREAD)
    return model
