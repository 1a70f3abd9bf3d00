"""The lease that keeps two turns of one session apart: a row's owner and end, changed by conditional updates only."""

import secrets
import time
from dataclasses import dataclass

from sqlalchemy import Engine, or_, update

from app.errors import ConflictError
from app.sessions.tables import sessions


@dataclass(frozen=True)
class Lease:
    """Held by one turn. Ends by itself `seconds` after it was taken or last renewed, so a dead turn blocks nobody."""

    engine: Engine
    tenant: str
    session_id: str
    owner: str
    seconds: float

    def renew(self) -> None:
        """Hold it for another `seconds`. Raises ConflictError when another turn has taken it over meanwhile."""
        statement = (
            update(sessions)
            .where(sessions.c.tenant == self.tenant, sessions.c.session_id == self.session_id)
            .where(sessions.c.lease_owner == self.owner)
            .values(lease_until=time.time() + self.seconds)
        )
        with self.engine.begin() as connection:
            if connection.execute(statement).rowcount == 0:
                raise ConflictError(self.session_id)

    def release(self) -> None:
        """Let the next turn in. Does nothing when the lease was lost or the session deleted."""
        statement = (
            update(sessions)
            .where(sessions.c.tenant == self.tenant, sessions.c.session_id == self.session_id)
            .where(sessions.c.lease_owner == self.owner)
            .values(lease_owner=None, lease_until=0.0)
        )
        with self.engine.begin() as connection:
            connection.execute(statement)


def try_acquire(engine: Engine, tenant: str, session_id: str, seconds: float) -> Lease | None:
    """The lease, or None when the session does not exist or another turn holds it."""
    now, owner = time.time(), secrets.token_hex(16)
    statement = (
        update(sessions)
        .where(sessions.c.tenant == tenant, sessions.c.session_id == session_id)
        .where(or_(sessions.c.lease_owner.is_(None), sessions.c.lease_until <= now))
        .values(lease_owner=owner, lease_until=now + seconds)
    )
    with engine.begin() as connection:
        if connection.execute(statement).rowcount == 0:
            return None
    return Lease(engine, tenant, session_id, owner, seconds)
