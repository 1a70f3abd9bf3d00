"""Cases of `evals.faults` that once found something, or are the worst of their kind, on a real service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.faults.cases import Case
from evals.faults.stand import open_stand
from evals.faults.trying import Trials


@pytest.fixture(scope="module")
def trials(models_dir: Path) -> Iterator[Trials]:
    with open_stand() as stand:
        yield Trials(stand, deadline_s=40.0)


@pytest.mark.parametrize(
    ("fault", "moment", "turn"),
    [
        # chunks of a session that is deleted before its turn commits stayed until they expired
        ("session deleted", "between the chunks and the commit", 1),
        ("session deleted", "before the chunks are written", 2),
        ("service killed", "between the commit and the manifest", 2),
        ("client disconnects", "at a token", 2),
        ("two turns at once", "", 2),
        ("forged header", "", 2),
    ],
)
def test_nothing_is_wrong_and_nothing_is_left(trials: Trials, fault: str, moment: str, turn: int) -> None:
    outcome = trials.run(Case(0, 0, fault, script=0, turn=turn, stream=True, moment=moment))
    assert outcome.clean, outcome.notes
    assert outcome.disturbed
