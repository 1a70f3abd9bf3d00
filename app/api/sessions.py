"""`/sessions`: list, turns, forget."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from app.api.deps import ServicesDep, TenantDep
from app.sessions import Session, TurnRecord

router = APIRouter(tags=["sessions"])


@router.get("/sessions")
def sessions(tenant: TenantDep, services: ServicesDep) -> dict[str, Any]:
    """The caller's sessions, last used first."""
    return {"sessions": [_session(session) for session in services.records.list(tenant)]}


@router.get("/sessions/{session_id}")
def session(tenant: TenantDep, services: ServicesDep, session_id: str) -> dict[str, Any]:
    """One session with its turns: answer objects, each with the `message` that it answers."""
    found = services.records.get(tenant, session_id)
    turns = services.records.turns(tenant, session_id)
    return {**_session(found), "turns": [_turn(session_id, turn) for turn in turns]}


@router.delete("/sessions/{session_id}", status_code=204)
def delete(tenant: TenantDep, services: ServicesDep, session_id: str) -> None:
    """Forget a session: its transcript and its cache."""
    services.records.delete(tenant, session_id)
    services.store.drop(tenant, session_id)


def _session(session: Session) -> dict[str, Any]:
    shown = asdict(session)
    del shown["tenant"]
    return shown


def _turn(session_id: str, turn: TurnRecord) -> dict[str, Any]:
    """The answer object as it was sent, with the message and the time."""
    shown = asdict(turn)
    del shown["token_ids"], shown["starts_over"]
    return {"id": shown.pop("answer_id"), "session_id": session_id, "turn": shown.pop("number"), **shown}
