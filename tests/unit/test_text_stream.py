"""Tokens to text: whole characters, whatever the tokens cut through."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from app.engine.text_stream import REPLACEMENT, TextStream


@pytest.fixture(scope="module")
def tokenizer(models_dir: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(models_dir / "smollm2-135m-instruct")


def pieces(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    found = [*[stream.push(token_id) for token_id in ids], stream.finish()]
    assert "".join(found) == stream.text
    assert list(stream.token_ids) == ids
    return found


@pytest.mark.parametrize(
    "text", ["Pumps run.", "水門の重さは900キログラム", "👩‍👩‍👧‍👦🇯🇵", "e\u0301 שלום", "a\n\n  b\t"]
)
def test_no_piece_holds_half_a_character(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    found = pieces(tokenizer, tokenizer.encode(text, add_special_tokens=False))
    assert "".join(found) == text
    assert not any(REPLACEMENT in piece for piece in found)


def test_an_answer_cut_inside_a_character_ends_before_it(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer.encode("flow 水", add_special_tokens=False)
    assert "".join(pieces(tokenizer, ids[:-1])).rstrip() == "flow"


def test_blanks_at_the_start_and_special_tokens_are_not_shown(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer.encode("  \n Yes.<|im_end|>", add_special_tokens=False)
    assert "".join(pieces(tokenizer, ids)) == "Yes."


@given(ids=st.lists(st.integers(0, 49151), max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_tokens_become_the_same_text_as_at_once(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> None:
    at_once = tokenizer.decode(ids, skip_special_tokens=True).lstrip().rstrip(REPLACEMENT)
    assert "".join(pieces(tokenizer, ids)).rstrip(REPLACEMENT) == at_once
