"""Cases and scores of the evaluation of citations."""

from app.citations import cite
from evals.citations import METHODS, _case, _scores, abridged

TEXT = (
    "The gate weighs 900 kilograms. " * 40 + "The pump was built in 1931 by Marta Quill. " + "The tower is red. " * 60
)


def test_a_case_holds_its_evidence_among_its_passages() -> None:
    start = TEXT.index("The pump")
    case = _case(TEXT, "Who built the pump?", ((start, start + 42),), count=2)
    assert len(case.passages) == 2
    assert all(TEXT[piece.start : piece.end] == piece.text for piece in case.passages)
    row = _scores([case], str, METHODS["with question"])
    assert row == {"precision": 1.0, "recall": 1.0, "sources": 1.0}
    assert _scores([case], lambda _: "The tower is red.", METHODS["with question"])["precision"] == 0.0
    assert cite(case.answer, case.passages)


def test_abridged() -> None:
    assert abridged("a b c d e f g h i") == "a b c e f g i"
