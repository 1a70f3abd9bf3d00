"""The study of head profiles: its comparisons, its texts, and the profiles that it hands on."""

import json
from pathlib import Path

import numpy as np
import pytest

from evals.profile_compare import by_count, correlation, distance, matrix, mean_of, of_source, read_at_all
from evals.profile_texts import PARTS, Measured, documents, load
from evals.profile_use import profile

ONE = Measured("a", "1", 100, {16: ((1.0, 3.0), (0.0, 0.0)), 32: ((1.0, 1.0), (1.0, 1.0))})
TWO = Measured("a", "2", 100, {16: ((3.0, 1.0), (0.0, 0.0))})
OTHER = Measured("b", "3", 100, {16: ((0.0, 0.0), (2.0, 2.0))})
STUDY = [ONE, TWO, OTHER, Measured("b", "3", 200, {16: ((4.0, 0.0), (0.0, 0.0))})]


def test_distance_is_the_part_that_would_have_to_be_given_to_other_heads() -> None:
    ours, theirs = np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([[6.0, 2.0], [0.0, 0.0]])
    assert distance(ours, ours * 7) == pytest.approx(0)
    assert distance(ours, theirs) == pytest.approx(0.5)  # 1/4, 3/4 beside 3/4, 1/4
    assert distance(ours, np.array([[0.0, 0.0], [1.0, 1.0]])) == pytest.approx(1)
    assert correlation(ours, 2 * ours + 1) == pytest.approx(1)
    assert correlation(ours, -ours) == pytest.approx(-1)


def test_the_mean_of_all_gives_every_source_the_same_weight() -> None:
    np.testing.assert_allclose(mean_of(STUDY, 100, 16, "a"), [[2, 2], [0, 0]])
    np.testing.assert_allclose(mean_of(STUDY, 100, 16), [[1, 1], [1, 1]])
    assert mean_of(STUDY, 100, 64) is None
    assert len(of_source(STUDY, 100, 32, "a")) == 1


def test_more_texts_come_closer_to_the_held_out() -> None:
    drawn = np.random.default_rng(0)
    truth = drawn.random((5, 3)) + 1
    texts = [truth + drawn.normal(0, 0.3, truth.shape) for _ in range(8)]
    found = by_count(texts, seed=0)
    assert list(found) == [1, 2, 4]
    assert found[1][0] < found[2][0] < found[4][0] < 1
    assert found[1][1] > found[2][1] > found[4][1] > 0
    assert by_count(texts[:1], seed=0) == {}


def test_lengths_are_compared_on_the_same_documents() -> None:
    assert [(one.document, one.tokens) for one in read_at_all(STUDY, [100, 200])] == [("3", 100), ("3", 200)]


def test_what_was_not_measured_has_no_row() -> None:
    table = matrix({"a": np.array([[1.0, 3.0]]), "gone": None, "b": np.array([[3.0, 1.0]])})
    assert table == {"a": ["1.000 / 0.000", "-1.000 / 0.500"], "b": ["-1.000 / 0.500", "1.000 / 0.000"]}


def test_paragraphs_are_joined_into_parts_and_papers_keep_their_names(tmp_path: Path) -> None:
    paragraphs = tmp_path / "paragraphs.jsonl"
    paragraphs.write_text("\n".join(json.dumps({"context": f"p{number}"}) for number in range(2 * PARTS + 1)))
    assert list(documents(paragraphs).values()) == [f"p{2 * part}\n\np{2 * part + 1}" for part in range(PARTS)]
    papers = tmp_path / "papers.jsonl"
    papers.write_text(json.dumps({"document_id": 7, "text": "a paper"}))
    assert documents(papers) == {"7": "a paper"}
    assert list(documents(tmp_path)) == ["papers.jsonl", "paragraphs.jsonl"]


def test_a_study_is_read_again_and_gives_the_named_profile(tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    assert load(file) == []
    row = {"source": "a", "document": "1", "tokens": 100, "shares": {"16": [[1.0, 3.0], [0.0, 0.0]]}}
    file.write_text(json.dumps({"profiles": [row]}))
    assert load(file) == [Measured("a", "1", 100, {16: ONE.shares[16]})]
    assert profile(STUDY, "all:100:16").shares == ((1.0, 1.0), (1.0, 1.0))
    with pytest.raises(SystemExit, match="holds no profile c:100:16"):
        profile(STUDY, "c:100:16")
