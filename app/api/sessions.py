"""`/sessions`: list, turns, forget."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from app.api.deps import ServicesDep, TenantDep

router = APIRouter(tags=["sessions"])


@router.get("/sessions")
def sessions(tenant: TenantDep, services: ServicesDep) -> dict[str, Any]:
    """The caller's sessions, last used first."""
    return {"sessions": [asdict(session) for session in services.records.list(tenant)]}


@router.get("/sessions/{session_id}")
def session(tenant: TenantDep, services: ServicesDep, session_id: str) -> dict[str, Any]:
    """One session with its turns: answer objects, each with the `message` that it answers."""
    found = services.records.get(tenant, session_id)
    turns = services.records.turns(tenant, session_id)
    return {**asdict(found), "turns": [_turn(session_id, turn) for turn in turns]}


@router.delete("/sessions/{session_id}", status_code=204)
def delete(tenant: TenantDep, services: ServicesDep, session_id: str) -> None:
    """Forget a session: its transcript and its cache."""
    services.records.delete(tenant, session_id)
    services.store.drop(tenant, session_id)
