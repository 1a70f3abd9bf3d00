"""Sessions and turns on a real SQLite database."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import Engine, text

from app.errors import ConflictError, SessionNotFoundError
from app.sessions import Lease, SessionRecords, TurnRecord
from retriever.errors import StoreError

MakeTurn = Callable[..., TurnRecord]


def commit(records: SessionRecords, tenant: str, session_id: str, *turns: TurnRecord) -> None:
    for record in turns:
        with records.lease(tenant, session_id, 10) as lease:
            records.commit_turn(lease, record)


def test_a_committed_turn_reads_back_equal_after_reopening(
    database: Engine, records: SessionRecords, make_turn: MakeTurn
) -> None:
    session = records.create("t", "default")
    first = make_turn(1, (0, 1, 2**32 - 1), starts_over=True)
    commit(records, "t", session.session_id, first)
    database.dispose()
    assert SessionRecords(database).turns("t", session.session_id) == [first]


def test_a_new_session_is_empty_and_gets_its_title_from_the_first_message(
    records: SessionRecords, make_turn: MakeTurn
) -> None:
    session = records.create("t", "papers")
    assert session.session_id.startswith("ses_")
    assert (session.collection, session.title, session.turns) == ("papers", "", 0)
    assert records.get("t", session.session_id) == session
    long = "word  \n" * 40
    commit(records, "t", session.session_id, replace(make_turn(1, starts_over=True), message=long), make_turn(2))
    found = records.get("t", session.session_id)
    assert found.title.startswith("word word word")
    assert found.title.endswith("…")
    assert len(found.title) <= 80
    assert found.turns == 2
    assert found.updated_at > found.created_at


def test_the_list_names_the_last_used_session_first(records: SessionRecords, make_turn: MakeTurn) -> None:
    older, newer = records.create("t", "default"), records.create("t", "default")
    assert [s.session_id for s in records.list("t")] == [newer.session_id, older.session_id]
    commit(records, "t", older.session_id, make_turn(1, starts_over=True))
    assert [s.session_id for s in records.list("t")] == [older.session_id, newer.session_id]


def test_the_sequence_is_what_was_appended_since_the_last_start(records: SessionRecords, make_turn: MakeTurn) -> None:
    session_id = records.create("t", "default").session_id
    assert records.sequence("t", session_id) == []
    commit(records, "t", session_id, make_turn(1, (1, 2), starts_over=True), make_turn(2, (3,)))
    assert records.sequence("t", session_id) == [1, 2, 3]
    commit(records, "t", session_id, make_turn(3, ()))
    assert records.sequence("t", session_id) == [1, 2, 3]
    commit(records, "t", session_id, make_turn(4, (7, 8), starts_over=True), make_turn(5, (9,)))
    assert records.sequence("t", session_id) == [7, 8, 9]


def test_a_turn_without_tokens_may_come_first(records: SessionRecords, make_turn: MakeTurn) -> None:
    session_id = records.create("t", "default").session_id
    commit(records, "t", session_id, make_turn(1, ()))
    assert records.sequence("t", session_id) == []
    commit(records, "t", session_id, make_turn(2, (5,), starts_over=True))
    assert records.sequence("t", session_id) == [5]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_only_the_next_number_is_taken_and_nothing_is_kept_of_another(
    records: SessionRecords, make_turn: MakeTurn, number: int
) -> None:
    session_id = records.create("t", "default").session_id
    commit(records, "t", session_id, make_turn(1, starts_over=True))
    with pytest.raises(ConflictError):
        commit(records, "t", session_id, make_turn(number))
    assert [t.number for t in records.turns("t", session_id)] == [1]
    assert records.get("t", session_id).turns == 1


def test_a_turn_cannot_continue_a_sequence_that_is_not_there(records: SessionRecords, make_turn: MakeTurn) -> None:
    session_id = records.create("t", "default").session_id
    with pytest.raises(ConflictError):
        commit(records, "t", session_id, make_turn(1, (1, 2)))


def test_sessions_of_another_tenant_are_unknown(records: SessionRecords, make_turn: MakeTurn) -> None:
    session_id = records.create("a", "default").session_id
    commit(records, "a", session_id, make_turn(1, starts_over=True))
    assert records.list("b") == []
    for call in (records.get, records.turns, records.sequence, records.delete):
        with pytest.raises(SessionNotFoundError):
            call("b", session_id)
    with pytest.raises(SessionNotFoundError), records.lease("b", session_id, 10):
        pass
    with records.lease("a", session_id, 10) as lease, pytest.raises(ConflictError):
        records.commit_turn(Lease(lease.engine, "b", session_id, lease.owner, 10), make_turn(2))
    assert len(records.turns("a", session_id)) == 1


def test_a_deleted_session_is_unknown_and_a_running_turn_cannot_bring_it_back(
    records: SessionRecords, make_turn: MakeTurn
) -> None:
    session_id = records.create("t", "default").session_id
    commit(records, "t", session_id, make_turn(1, starts_over=True))
    with records.lease("t", session_id, 10) as lease:
        records.delete("t", session_id)
        with pytest.raises(ConflictError):
            records.commit_turn(lease, make_turn(2))
    for call in (records.get, records.turns, records.sequence, records.delete):
        with pytest.raises(SessionNotFoundError):
            call("t", session_id)
    assert records.forget_document("t", "d1") == []


def test_a_commit_that_fails_midway_leaves_the_session_as_it_was(records: SessionRecords, make_turn: MakeTurn) -> None:
    session_id = records.create("t", "default").session_id
    with pytest.raises(OverflowError):
        commit(records, "t", session_id, make_turn(1, (2**32,), starts_over=True))
    assert records.get("t", session_id).turns == 0
    commit(records, "t", session_id, make_turn(1, (5,), starts_over=True))
    assert records.sequence("t", session_id) == [5]


def test_tables_of_another_version_are_refused(database: Engine, records: SessionRecords) -> None:
    with database.begin() as connection:
        connection.execute(text("UPDATE sessions_version SET version = 99"))
    with pytest.raises(StoreError, match="99"):
        SessionRecords(database)
