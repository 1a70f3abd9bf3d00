"""Scores and sets of the evaluation of retrieval, against values worked out by hand."""

import json
import math
from pathlib import Path

import pytest

from evals.retrieval.bench import joined
from evals.retrieval.scores import ndcg, recall, span_scores, within
from evals.retrieval.sets import load
from retriever import Passage


def passage(start: int, end: int) -> Passage:
    return Passage(f"d:{start}", "d", "title", 1, start, end, "x" * (end - start))


def test_ndcg() -> None:
    assert ndcg(["a", "b"], {"a", "b"}, 10) == 1
    assert ndcg(["x", "a"], {"a"}, 10) == pytest.approx(1 / math.log2(3))
    assert ndcg(["a", "x", "b"], {"a", "b"}, 10) == pytest.approx((1 + 1 / 2) / (1 + 1 / math.log2(3)))
    assert ndcg(["x", "a"], {"a"}, 1) == 0
    assert recall(["x", "a", "b"], {"a", "b"}, 2) == 0.5


def test_characters_within_a_budget() -> None:
    ranked = [passage(0, 10), passage(5, 25), passage(90, 100)]
    assert within(ranked, [10, 20, 10], 30) == ranked[:2]
    assert within(ranked, [10, 20, 10], 29) == ranked[:1]
    assert span_scores(ranked[:2], [(20, 30), (0, 5)]) == (pytest.approx(10 / 15), pytest.approx(10 / 25))
    assert span_scores([], [(20, 30)]) == (0, 0)


def test_a_judgement_belongs_to_a_turn_of_a_conversation(tmp_path: Path) -> None:
    said = [{"speaker": "user", "text": "one"}, {"speaker": "agent", "text": "1"}, {"speaker": "user", "text": "two"}]
    context = {"document_id": "d/1", "text": "both"}
    turns = [
        {"task_id": "c<::>1", "Collection": "news", "contexts": [context], "input": said[:1]},
        {"task_id": "c<::>2", "Collection": "news", "contexts": [context], "input": said},
    ]
    (tmp_path / "mtrag_un.jsonl").write_text("\n".join(map(json.dumps, turns)))
    (tmp_path / "mtrag_un_qrels").mkdir()
    (tmp_path / "mtrag_un_qrels" / "news.tsv").write_text("query-id\tcorpus-id\tscore\nc<::>2\td/1\t1\n")
    loaded = load(tmp_path, "mtrag_un")
    assert loaded.collections == {"news": {"d_1.txt": "both"}}
    (question,) = loaded.questions["news"]
    assert joined(question) == "two\none"
    assert question.files == {"d_1.txt"}
