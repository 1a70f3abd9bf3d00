"""How many turns may wait or run."""

import threading
from contextlib import ExitStack

import pytest

from app.admission import Admission
from app.errors import ServerBusyError, TenantLimitError


def test_a_tenant_has_its_share_and_the_service_its_limit() -> None:
    admission = Admission(total=3, per_tenant=2)
    with ExitStack() as held:
        held.enter_context(admission.turn("a"))
        held.enter_context(admission.turn("a"))
        with pytest.raises(TenantLimitError), admission.turn("a"):
            raise AssertionError
        held.enter_context(admission.turn("b"))
        with pytest.raises(ServerBusyError), admission.turn("c"):
            raise AssertionError
        assert admission.turns == 3
    assert admission.turns == 0


def test_a_turn_that_fails_gives_its_place_back() -> None:
    admission = Admission(total=1, per_tenant=1)
    with pytest.raises(RuntimeError), admission.turn("a"):
        raise RuntimeError
    with admission.turn("a"):
        assert admission.turns == 1


def test_many_threads_never_exceed_the_limit() -> None:
    admission, seen, refused = Admission(total=4, per_tenant=4), [], []

    def work(tenant: str) -> None:
        for _ in range(300):
            try:
                with admission.turn(tenant):
                    seen.append(admission.turns)
            except ServerBusyError:
                refused.append(1)

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seen) <= 4
    assert len(seen) + len(refused) == 8 * 300
    assert admission.turns == 0
