"""The lease that keeps two turns of one session apart."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from app.errors import ConflictError, SessionBusyError, SessionNotFoundError
from app.sessions import SessionRecords, TurnRecord

MakeTurn = Callable[..., TurnRecord]


@pytest.fixture
def session_id(records: SessionRecords) -> str:
    return records.create("t", "default").session_id


def test_a_second_turn_is_refused_until_the_first_has_ended(records: SessionRecords, session_id: str) -> None:
    with records.lease("t", session_id, 10), pytest.raises(SessionBusyError), records.lease("t", session_id, 10):
        pass
    with records.lease("t", session_id, 10):
        pass


def test_the_lease_is_released_when_the_turn_fails(records: SessionRecords, session_id: str) -> None:
    with pytest.raises(RuntimeError, match="the turn"), records.lease("t", session_id, 10):
        raise RuntimeError("the turn failed")
    with records.lease("t", session_id, 10):
        pass


def test_leases_of_two_sessions_do_not_meet(records: SessionRecords, session_id: str) -> None:
    other = records.create("t", "default").session_id
    with records.lease("t", session_id, 10), records.lease("t", other, 10):
        pass


def test_an_unknown_session_has_no_lease(records: SessionRecords) -> None:
    with pytest.raises(SessionNotFoundError), records.lease("t", "ses_none", 10):
        pass


def test_a_lease_ends_by_itself_and_the_late_turn_cannot_commit(
    records: SessionRecords, session_id: str, make_turn: MakeTurn
) -> None:
    with records.lease("t", session_id, 0.05) as late:
        time.sleep(0.1)
        with records.lease("t", session_id, 10) as current:
            for change in (late.renew, lambda: records.commit_turn(late, make_turn(1, starts_over=True))):
                with pytest.raises(ConflictError):
                    change()
            # the late turn's end must not release the lease of the one that took over
            late.release()
            records.commit_turn(current, make_turn(1, (7,), starts_over=True))
    assert records.sequence("t", session_id) == [7]


def test_a_lease_that_is_over_commits_nothing_even_when_nobody_took_over(
    records: SessionRecords, session_id: str, make_turn: MakeTurn
) -> None:
    with records.lease("t", session_id, 0.05) as lease:
        time.sleep(0.1)
        with pytest.raises(ConflictError):
            records.commit_turn(lease, make_turn(1, starts_over=True))
        lease.renew()
        records.commit_turn(lease, make_turn(1, starts_over=True))


def test_a_renewed_lease_lives_on(records: SessionRecords, session_id: str) -> None:
    with records.lease("t", session_id, 0.3) as lease:
        for _ in range(4):
            time.sleep(0.1)
            lease.renew()
        with pytest.raises(SessionBusyError), records.lease("t", session_id, 10):
            pass


def test_of_many_turns_at_once_exactly_one_gets_the_lease(records: SessionRecords, session_id: str) -> None:
    together, done = Barrier(8), Barrier(8)

    def attempt() -> bool:
        together.wait()
        try:
            with records.lease("t", session_id, 10):
                done.wait()
                return True
        except SessionBusyError:
            done.wait()
            return False

    with ThreadPoolExecutor(8) as pool:
        results = [future.result() for future in [pool.submit(attempt) for _ in range(8)]]
    assert sum(results) == 1
