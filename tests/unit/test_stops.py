"""Stop strings: the answer is what comes before the first one, however tokens cut the text."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from app.engine.stops import StopStrings
from app.engine.text_stream import TextStream


@pytest.fixture(scope="module")
def tokenizer(models_dir: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(models_dir / "smollm2-135m-instruct")


def answer(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], strings: Sequence[str]
) -> tuple[str, list[int], int]:
    """The text as a reader of the tokens gets it, its tokens, and how many were generated for it."""
    stops, stream, read, certain = StopStrings(tokenizer, strings), TextStream(tokenizer), 0, list[int]()
    for token_id in ids:
        read += 1
        certain += stops.push(token_id)
        if stops.found:
            break
    else:
        certain += stops.finish()
    text = "".join([*map(stream.push, certain), stream.finish(stops.tail)])
    assert list(stream.token_ids) == list(ids[: len(certain)])
    return text, certain, read


def cut(text: str, strings: Sequence[str]) -> str:
    """What remains of a text that is written character by character."""
    for end in range(1, len(text) + 1):
        starts = [end - len(string) for string in strings if text[:end].endswith(string)]
        if starts:
            return text[: min(starts)]
    return text


def whole(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    stream = TextStream(tokenizer)
    return "".join([*map(stream.push, ids), stream.finish()])


@pytest.mark.parametrize(
    ("strings", "expected"),
    [
        (["\n"], "The pump (4.2 m³) runs."),
        (["runs"], "The pump (4.2 m³) "),
        ([" runs.\nQ"], "The pump (4.2 m³)"),
        (["³)"], "The pump (4.2 m"),
        ([".2 m"], "The pump (4"),
        (["ump"], "The p"),
        (["The"], ""),
        (["absent", "Q: Why??"], "The pump (4.2 m³) runs.\nQ: Why?"),
        (["pump (4.2", "p (4"], "The pum"),
    ],
)
def test_the_answer_ends_before_the_stop_string(
    tokenizer: PreTrainedTokenizerBase, strings: list[str], expected: str
) -> None:
    ids = tokenizer.encode("The pump (4.2 m³) runs.\nQ: Why?", add_special_tokens=False)
    assert answer(tokenizer, ids, strings)[0] == expected


def test_what_could_begin_a_stop_string_is_held_back_until_it_does_not(tokenizer: PreTrainedTokenizerBase) -> None:
    stops = StopStrings(tokenizer, ["Question: next"])
    ids = tokenizer.encode("One. Question: two", add_special_tokens=False)
    shown = [whole(tokenizer, ids[:count]) for count in range(len(ids) + 1)]
    released: list[int] = []
    for token_id in ids:
        released += stops.push(token_id)
        text = whole(tokenizer, released)
        assert text in shown
        assert not any(text.endswith("Question: next"[:length]) for length in range(1, 15))
    assert text == "One. Question: two"


@given(data=st.data(), ids=st.lists(st.integers(0, 49151), min_size=1, max_size=25))
@settings(max_examples=300, deadline=None)
def test_any_tokens_and_strings(tokenizer: PreTrainedTokenizerBase, data: st.DataObject, ids: list[int]) -> None:
    """The tokens are a prefix, the text is what remains of all of it, and nothing is generated behind the stop."""
    text = whole(tokenizer, ids)
    substrings = st.tuples(st.integers(0, max(len(text) - 1, 0)), st.integers(1, 8)).map(
        lambda at: text[at[0] :][: at[1]]
    )
    strings = data.draw(st.lists(substrings.filter(bool) | st.text("ab \n", min_size=1, max_size=3), max_size=4))
    found, certain, read = answer(tokenizer, ids, strings)
    if "\ufffd" not in text:  # characters that never become complete are no text to look in
        assert found == cut(text, strings)
    if len(certain) < len(ids):
        assert not any(string in whole(tokenizer, ids[: read - 1]) for string in strings)
