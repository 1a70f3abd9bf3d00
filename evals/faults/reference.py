"""The sessions in which nothing happens, asked once for a run."""

from dataclasses import dataclass
from typing import Any

from evals.faults.counts import Outcome
from evals.faults.scripts import Script
from evals.faults.stand import KEYS, Stand
from evals.faults.stored import StoredSession
from evals.faults.talk import Talk


@dataclass(frozen=True)
class Reference:
    """The answers of a script's session, of the second tenant, and the keys that its first turn left."""

    answers: list[dict[str, Any]]
    stored: dict[str, bytes]


def undisturbed(stand: Stand, script: Script, deadline_s: float) -> Reference:
    """Ask it. RuntimeError when an answer does not come, or does not come from the cache."""
    talk = Talk(stand, KEYS[1], script, [], Outcome("reference", 0), deadline_s)
    stored: dict[str, bytes] = {}
    while len(talk.seen) < len(script.questions):
        reply = talk.send()
        if reply.answer is None or (talk.seen and not reply.answer["usage"]["cached_tokens"]):
            raise RuntimeError(f"the undisturbed session of {script.name} was disturbed: {reply}")
        talk.take(reply)
        stored = stored or StoredSession(stand.server.client, str(talk.session_id)).copy()
    stand.delete_all()
    return Reference(talk.seen, stored)
