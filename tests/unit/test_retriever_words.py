"""Words of every script, the same from a passage and from a question."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever import content_words
from retriever.fuse import fuse
from retriever.lexical import coverage, passage_words


@pytest.mark.parametrize(
    ("passage", "query"),
    [
        ("The Café's opening hours", "cafe hours"),
        ("cafe\u0301", "CAFÉ"),
        ("Die Straße", "STRASSE"),
        ("the ﬁnal ofﬁce", "final office"),
        ("Ｆｕｌｌ　ｗｉｄｔｈ １２", "full width 12"),
        ("吾輩は猫である。名前はまだ無い。", "猫"),
        ("これは黒猫", "猫"),
        ("データベース管理", "データベース"),
        ("데이터베이스를 관리합니다", "데이터베이스"),
        ("ภาษาไทยไม่มีช่องว่าง", "ภาษาไทย"),
        ("مُحَمَّد كتب الرسالة", "محمد الرسالة"),
        ("الإسلام أول", "الاسلام اول"),
        ("שָׁלוֹם עולם", "שלום"),
        ("नमस्ते दुनिया।", "दुनिया"),
        ("snake_case_name = v2.5", "case v2"),
    ],
)
def test_a_question_finds_its_words(passage: str, query: str) -> None:
    words = content_words(query)
    assert words
    assert coverage(words, passage) == 1.0


def test_words_of_unlike_passages_differ() -> None:
    assert coverage(content_words("दुनिया"), "नमस्ते") == 0.0
    assert coverage(content_words("犬"), "黒猫") == 0.0
    assert coverage(content_words("pump pressure"), "the pump is red") == 0.5
    assert coverage([], "anything") == 0.0


def test_stop_words_and_repetitions_say_nothing() -> None:
    assert content_words("What is the pump, and where is the Pump?") == ["pump"]
    assert content_words("what is it?") == []


@given(st.text())
def test_words_hold_nothing_that_a_query_language_could_read(text: str) -> None:
    for word in passage_words(text) + content_words(text):
        assert word
        assert not set(word) & set("\"'*()^:-+ \n\0")


def test_fused_scores_weigh_words_and_meaning() -> None:
    assert fuse({1: 8.0, 2: 4.0}, {1: 0.5, 2: 0.5, 3: 0.6}) == [
        (1, pytest.approx(0.4 + 0.6 * 0.5)),
        (2, pytest.approx(0.4 * 0.5 + 0.6 * 0.5)),
        (3, pytest.approx(0.6 * 0.6)),
    ]
    assert [item for item, _ in fuse({}, {2: 0.5, 1: 0.5})] == [1, 2]
    assert fuse({1: 0.0}, {1: 0.0}) == [(1, 0.0)]
    assert fuse({}, {}) == []
