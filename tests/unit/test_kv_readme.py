"""The library's own page: its code runs from top to bottom, with a tiny random model, and it installs what it needs."""

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from kv_compression import KVCache

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "compression" / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.fixture
def saved_model(tiny_model: Callable[..., PreTrainedModel], tmp_path: Path) -> Path:
    """A model and a tokenizer of single bytes, as a folder that `from_pretrained` takes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    tiny_model(vocab_size=256, max_position_embeddings=8192, eos_token_id=None, pad_token_id=None).save_pretrained(
        tmp_path
    )
    return tmp_path


def test_the_code_runs_from_top_to_bottom(saved_model: Path) -> None:
    names: dict[str, Any] = {
        "document": "".join(chr(97 + index * index % 23) for index in range(2500)),
        "question": "what?",
        "questions": ["why?", "where?"],
    }
    seen = []
    for block in BLOCKS:
        code = re.sub(r'from_pretrained\(".*?"', f"from_pretrained({str(saved_model)!r}", block)
        exec(compile(code, "compression/README.md", "exec"), names)
        seen.append({name: names.get(name) for name in ("cache", "output", "input_ids", "everything")})
    _, five_lines, lookup, assisted, turns, longer = seen
    assert five_lines["output"].shape[1] == 2505 + 100
    assert isinstance(five_lines["cache"], KVCache)
    assert (five_lines["cache"].length, five_lines["cache"].entries) == (2604, 1024 + 100)
    assert lookup["output"].tolist() == assisted["output"].tolist()
    assert torch.equal(lookup["output"], five_lines["output"])  # the tiny model's generate is greedy by default
    assert turns["input_ids"].shape[1] == 2500 + 4 + 100 + 6 + 100
    assert turns["everything"].entries == 2500 + 4 + 100 + 6 - 1
    assert longer["output"].shape[1] == 1024 + 1 + 100
    assert longer["cache"].length == 1024 + 100


def test_there_are_five_lines() -> None:
    assert len(BLOCKS[1].splitlines()) == 5


def test_it_needs_what_the_repository_needs_of_the_same_packages() -> None:
    ours, whole = (
        tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for folder in (ROOT / "compression", ROOT)
    )
    assert set(ours["dependencies"]) < set(whole["dependencies"])
    assert all(ours[key] == whole[key] for key in ("version", "license", "requires-python"))
    imported = set(
        re.findall(
            r"^(?:import|from) (\w+)",
            "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "compression/kv_compression").rglob("*.py")),
            re.M,
        )
    )
    needed = {re.split(r"\W", dependency)[0] for dependency in ours["dependencies"]}
    third_party = imported - set(sys.stdlib_module_names) - {"kv_compression"}
    assert third_party == needed


def test_what_it_links_to_exists() -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#.*?)?\)", PAGE):
        assert (ROOT / "compression" / link).is_file(), link
