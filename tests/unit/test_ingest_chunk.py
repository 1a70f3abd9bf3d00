"""Passages are spans of the text: exactly, in order, small enough, and never across a page."""

from hypothesis import given
from hypothesis import strategies as st

from retriever.chunk import MAX_TOKEN_CHARS, chunk
from retriever.extract.outline import assemble
from retriever.model import Extracted


def words(text: str) -> int:
    return len(text.split())


PIECES = st.text(st.sampled_from("abÄ日本。. ,\n\t-x"), max_size=300)


@given(st.lists(PIECES, min_size=1, max_size=4), st.integers(1, 20))
def test_passages_cover_the_text_in_order_and_keep_to_their_page(pages: list[str], limit: int) -> None:
    extracted = assemble(pages)
    spans = chunk(extracted, words, limit)
    covered = "".join(extracted.text[span.start : span.end] for span in spans)
    assert "".join(covered.split()) == "".join(extracted.text.split())
    for before, after in zip(spans, spans[1:], strict=False):
        assert before.end <= after.start
    for span in spans:
        first, last = extracted.pages[span.page - 1]
        assert first <= span.start < span.end <= last
        assert words(extracted.text[span.start : span.end]) <= limit


def test_a_tokenizer_that_makes_one_token_of_a_long_word_does_not_make_one_passage() -> None:
    text = "x" * 50_000
    spans = chunk(Extracted(text, [(0, len(text))], "", []), words, 200)
    assert "".join(text[span.start : span.end] for span in spans) == text
    assert max(span.end - span.start for span in spans) <= 200 * MAX_TOKEN_CHARS + MAX_TOKEN_CHARS


def test_text_without_any_joint_is_cut_all_the_same() -> None:
    text = "x" * 5000
    spans = chunk(Extracted(text, [(0, len(text))], "", []), len, 200)
    assert "".join(text[span.start : span.end] for span in spans) == text
    assert max(span.end - span.start for span in spans) <= 200
