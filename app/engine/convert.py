"""A GGUF file to a folder that transformers loads: safetensors in bfloat16, and the file's own tokenizer.

Runs in a process of its own (`python -m app.engine.convert GGUF FOLDER`), so that the memory it takes goes with it.
transformers can read the weights but guesses the tokenizer from the architecture; here it is built from the file.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

CONTROL, USER_DEFINED = 3, 4  # GGUF's token types
# what llama.cpp calls the pre-tokenizer `smollm`: single digits, then GPT-2's pattern
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def read_fields(gguf: Path) -> dict[str, Any]:
    """The metadata of a GGUF file."""
    return {name: field.contents() for name, field in GGUFReader(str(gguf)).fields.items()}


def build_tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer from the file's vocabulary, merges and token types. ValueError for another kind."""
    kind = (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"cannot build a tokenizer of kind {kind}")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    words = pre_tokenizers.Split(Regex(GPT2_PATTERN), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, type_ in zip(tokens, types, strict=True) if type_ in (CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = fields["tokenizer.chat_template"]
    return wrapped


def convert(gguf: Path, folder: Path) -> None:
    """Write config, weights and tokenizer into `folder`."""
    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # with it, saving refuses; the weights are not quantized any more
    fields = read_fields(gguf)
    config.bos_token_id = fields["tokenizer.ggml.bos_token_id"]
    config.eos_token_id = fields["tokenizer.ggml.eos_token_id"]
    config.pad_token_id = fields["tokenizer.ggml.padding_token_id"]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(folder)
    build_tokenizer(fields).save_pretrained(folder)


def main() -> None:
    """Convert, and print one line of JSON when it is done."""
    logging.disable(logging.WARNING)
    gguf, folder = map(Path, sys.argv[1:])
    convert(gguf, folder)
    sys.stdout.write(json.dumps({"converted": folder.name}) + "\n")


if __name__ == "__main__":
    main()
