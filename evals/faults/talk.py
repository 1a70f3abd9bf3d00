"""A session of one tenant that asks a script's questions, whatever happens, and knows what was committed."""

import time
from typing import Any

from evals.faults.client import send
from evals.faults.counts import Outcome, Reply, essence, judge
from evals.faults.scripts import MAX_TOKENS, Script
from evals.faults.stand import Stand

BUSY_S = 15.0
"""How long a turn whose client is gone may hold its session."""


class Talk:
    """`references` are the answers of an undisturbed session, none while that one is asked itself."""

    def __init__(
        self,
        stand: Stand,
        key: str,
        script: Script,
        references: list[dict[str, Any]],
        outcome: Outcome,
        deadline_s: float,
    ) -> None:
        self.stand, self.key, self.script, self.references = stand, key, script, references
        self.outcome, self.deadline_s = outcome, deadline_s
        self.session_id: str | None = None
        self.seen: list[dict[str, Any]] = []

    def ask(self, *, stream: bool = True, broken: bool = False, allowed: tuple[int, ...] = ()) -> Reply:
        """The next question, judged. `broken`, `allowed`: see `judge`."""
        reply = self.send(stream=stream)
        self.judge(reply, broken=broken, allowed=allowed)
        self.take(reply)
        return reply

    def judge(self, reply: Reply, *, broken: bool = False, allowed: tuple[int, ...] = ()) -> None:
        """Compare a reply to the next question with that of the undisturbed session."""
        reference, deadline_s = self.references[len(self.seen)], self.deadline_s
        judge(self.outcome, reply, reference, deadline_s=deadline_s, broken=broken, allowed=allowed)

    def send(self, *, stream: bool = True) -> Reply:
        """The next question, and what comes of it."""
        body: dict[str, Any] = {"max_tokens": MAX_TOKENS, "top_k": 2, "stream": stream}
        body |= {"message": self.script.questions[len(self.seen)], "collection": self.script.name}
        if self.session_id is not None:
            body["session_id"] = self.session_id
        return send(self.stand.url, self.key, body, self.deadline_s)

    def take(self, reply: Reply) -> None:
        """Go on from this reply."""
        self.session_id = self.session_id or reply.session_id
        if reply.answer is not None:
            self.seen.append(reply.answer)

    def catch_up(self) -> None:
        """After a disturbed turn: take it over if it was committed, else ask again until the session is free."""
        expected = len(self.seen)
        self._find_session()
        until = time.monotonic() + BUSY_S
        while len(self.seen) == expected:
            reply = self.ask(allowed=(409,))
            if reply.answer is not None:
                return
            if time.monotonic() > until:
                self.outcome.note("hangs", f"the session stayed busy for {BUSY_S:.0f} s after its turn was cut off")
                return
            time.sleep(0.1)
            self.adopt()

    def adopt(self) -> None:
        """Take over turns that were committed without our hearing of it."""
        if self.session_id is None:
            return
        for turn in self.turns()[len(self.seen) :]:
            self.seen.append(turn)

    def turns(self) -> list[dict[str, Any]]:
        """As the service has them."""
        assert self.session_id is not None
        turns: list[dict[str, Any]] = self.stand.get(self.key, f"/sessions/{self.session_id}")["turns"]
        return turns

    def check(self) -> None:
        """Every turn that was seen is there, and every turn that is there is right."""
        if self.session_id is None:
            return
        kept = self.turns()
        by_id = {turn["id"]: turn for turn in kept}
        for answer in self.seen:
            if answer["id"] not in by_id or essence(by_id[answer["id"]]) != essence(answer):
                self.outcome.note("lost", f"turn {answer['turn']}")
        for turn, reference in zip(kept, self.references, strict=False):
            if essence(turn) != essence(reference):
                self.outcome.note("wrong", f"turn {turn['turn']} as kept: {turn['answer']!r}")

    def _find_session(self) -> None:
        """The session of a first turn whose answer did not come; one without turns is left alone."""
        if self.session_id is None:
            for session in self.stand.get(self.key, "/sessions")["sessions"]:
                if session["turns"] and session["collection"] == self.script.name:
                    self.session_id = session["session_id"]
        elif not self.seen and self.session_id not in self._sessions():
            self.session_id = None  # a first turn that did not come to its end leaves no session
        self.adopt()

    def _sessions(self) -> set[str]:
        return {session["session_id"] for session in self.stand.get(self.key, "/sessions")["sessions"]}
