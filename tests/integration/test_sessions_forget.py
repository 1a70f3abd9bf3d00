"""Deleting a document takes it out of every transcript of its tenant."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Barrier

import pytest
from sqlalchemy import Engine, select

from app.errors import ConflictError
from app.sessions import SessionRecords, TurnRecord
from app.sessions.tables import metadata

MakeTurn = Callable[..., TurnRecord]


def new_session(records: SessionRecords, tenant: str, *turns: TurnRecord) -> str:
    session_id = records.create(tenant, "default").session_id
    for record in turns:
        with records.lease(tenant, session_id, 10) as lease:
            records.commit_turn(lease, record)
    return session_id


def test_the_document_leaves_the_turns_that_hold_it_and_no_others(
    database: Engine, records: SessionRecords, make_turn: MakeTurn
) -> None:
    kept, gone = make_turn(1, (1,), starts_over=True, document_id="keep"), make_turn(2, (2,), document_id="secret")
    both = replace(
        make_turn(3, (3,)),
        passages=[*kept.passages, *gone.passages],
        citations=[
            *gone.citations,
            {
                "start": 0,
                "end": 1,
                "text": "a",
                "sources": [s for t in (kept, gone) for s in t.citations[0]["sources"]],
            },
        ],
    )
    holder = new_session(records, "t", kept, gone, both)
    other = new_session(records, "t", kept)

    assert records.forget_document("t", "secret") == [holder]

    first, second, third = records.turns("t", holder)
    assert first == kept
    assert (second.passages, second.citations, second.token_ids) == ([], [], [])
    assert third.passages == kept.passages
    assert [citation["sources"] for citation in third.citations] == [kept.citations[0]["sources"]]
    assert third.token_ids == []
    assert second.answer == gone.answer
    assert records.turns("t", other) == [kept]
    assert records.sequence("t", other) == [1]
    with database.connect() as connection:
        dump = "\n".join(str(row) for table in metadata.sorted_tables for row in connection.execute(select(table)))
    assert "secret-0" not in dump


def test_the_session_starts_over_at_its_next_turn(records: SessionRecords, make_turn: MakeTurn) -> None:
    session_id = new_session(records, "t", make_turn(1, (1,), starts_over=True), make_turn(2, (2,), document_id="d2"))
    records.forget_document("t", "d1")
    assert records.sequence("t", session_id) == []
    with records.lease("t", session_id, 10) as lease:
        records.commit_turn(lease, make_turn(3, (), document_id="d2"))
        assert records.sequence("t", session_id) == []
        with pytest.raises(ConflictError):
            records.commit_turn(lease, make_turn(4, (4,), document_id="d2"))
        records.commit_turn(lease, make_turn(4, (5, 6), starts_over=True, document_id="d2"))
    assert records.sequence("t", session_id) == [5, 6]


def test_a_turn_that_ran_while_its_document_was_deleted_is_not_kept(
    records: SessionRecords, make_turn: MakeTurn
) -> None:
    session_id = new_session(records, "t")
    with records.lease("t", session_id, 10) as lease:
        assert records.forget_document("t", "d1") == []
        with pytest.raises(ConflictError):
            records.commit_turn(lease, make_turn(1, starts_over=True))
    assert records.turns("t", session_id) == []


def test_another_tenants_document_of_the_same_id_stays(records: SessionRecords, make_turn: MakeTurn) -> None:
    mine = new_session(records, "a", make_turn(1, starts_over=True))
    theirs = new_session(records, "b", make_turn(1, starts_over=True))
    assert records.forget_document("a", "d1") == [mine]
    assert len(records.turns("b", theirs)[0].passages) == 1
    assert new_session(records, "b", make_turn(1, starts_over=True)) is not None


def test_forgetting_twice_finds_nothing_more(records: SessionRecords, make_turn: MakeTurn) -> None:
    new_session(records, "t", make_turn(1, starts_over=True))
    assert len(records.forget_document("t", "d1")) == 1
    assert records.forget_document("t", "d1") == []
    assert records.forget_document("t", "never there") == []


def test_a_turn_and_the_forgetting_of_its_document_never_pass_each_other(
    database: Engine, records: SessionRecords, make_turn: MakeTurn
) -> None:
    """Whoever comes first: the document's text is in no transcript afterwards."""
    for number in range(20):
        document = f"d{number}"
        session_id = records.create("t", "default").session_id
        turn = make_turn(1, starts_over=True, document_id=document)
        together = Barrier(2)

        def commit(session_id: str = session_id, turn: TurnRecord = turn, together: Barrier = together) -> None:
            with records.lease("t", session_id, 10) as lease, suppress(ConflictError):
                together.wait()
                records.commit_turn(lease, turn)

        with ThreadPoolExecutor(1) as pool:
            committing = pool.submit(commit)
            together.wait()
            records.forget_document("t", document)
            committing.result()
        assert all(turn.passages == [] for turn in records.turns("t", session_id))
