"""How one case runs: the turns before, the disturbed one, those that follow; then everything is deleted and counted."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from app.sessions.kv_store import PROBE_S
from evals.faults.cases import DISTURBANCES, MOMENTS, PAIRS, Case
from evals.faults.counts import Outcome
from evals.faults.damage import DAMAGES, Copies
from evals.faults.proxy import Trigger
from evals.faults.reference import Reference, undisturbed
from evals.faults.scripts import SCRIPTS, Script
from evals.faults.stand import KEYS, Stand
from evals.faults.stored import StoredSession
from evals.faults.talk import Talk

SILENT = {"server killed", "server paused", "slow by the byte"}
"""After these the service leaves the server alone until a probe finds it back."""

FOUND_BACK_S = 2 * PROBE_S

DRIP_S = 0.02


class Trials:
    """Cases on one stand, against reference sessions that are asked once."""

    def __init__(self, stand: Stand, deadline_s: float) -> None:
        self.stand, self.deadline_s = stand, deadline_s
        self._references = {script.name: undisturbed(stand, script, deadline_s) for script in SCRIPTS}

    def run(self, case: Case) -> Outcome:
        """One case, from an empty store to an empty store."""
        outcome, started = Outcome(case.fault, case.number), time.monotonic()
        try:
            self._ask(case, outcome)
            self._clear(outcome)
        except Exception as error:  # a case that cannot be judged is a failure, and the next one begins sound
            outcome.note("other", f"{type(error).__name__}: {error}")
            self._recover()
        outcome.seconds = time.monotonic() - started
        return outcome

    def _ask(self, case: Case, outcome: Outcome) -> None:
        script = SCRIPTS[case.script]
        talk = self._talk(script, outcome)
        older: dict[str, bytes] = {}
        while len(talk.seen) < case.turn - 1:
            if talk.ask(stream=case.stream).answer is None:
                return
            older = older or StoredSession(self.stand.server.client, str(talk.session_id)).copy()
        if case.fault in DAMAGES:
            stored = StoredSession(self.stand.server.client, str(talk.session_id))
            outcome.disturbed = stored.exists
            if stored.exists:
                DAMAGES[case.fault](stored, case.rng, Copies(self._another(script).stored, older))
            talk.ask(stream=case.stream)
        elif case.fault in DISTURBANCES:
            self._disturb(case, talk)
        elif case.fault in PAIRS:
            self._pair(case, talk)
        self._go_on(case, talk)

    def _recover(self) -> None:
        self.stand.heal()
        self.stand.delete_all()
        self.stand.server.client.flushall()

    def _disturb(self, case: Case, talk: Talk) -> None:
        where, at, marks, then = MOMENTS[case.moment]
        trigger = Trigger(at, marks, self._action(case.fault), case.nth, then)  # type: ignore[arg-type]
        self.stand.arm(where, trigger)
        cut = case.fault in ("service killed", "client disconnects")
        deleted = case.fault == "session deleted"
        talk.ask(stream=case.stream, broken=cut, allowed=(404, 409) if deleted else ())
        trigger.finish()
        self.stand.heal()
        talk.outcome.disturbed = trigger.fired
        if case.patient and case.fault in SILENT:
            time.sleep(FOUND_BACK_S)
        if deleted and trigger.fired:
            talk.session_id, talk.seen = None, []
        elif len(talk.seen) < case.turn:
            talk.catch_up()

    def _action(self, fault: str) -> Callable[[], None]:
        stand = self.stand

        def drip() -> None:
            stand.store.pause_s = DRIP_S

        return {
            "service killed": stand.service.kill,
            "client disconnects": stand.door.cut,
            "server killed": stand.server.kill,
            "server paused": stand.server.pause,
            "server full": stand.server.fill,
            "server read-only": stand.server.refuse_writes,
            "server evicts": stand.server.evict,
            "slow by the byte": drip,
            "session deleted": stand.delete_all,
        }[fault]

    def _pair(self, case: Case, talk: Talk) -> None:
        if case.fault == "two sessions at once":
            script = SCRIPTS[(case.script + case.rng.randint(0, 2)) % len(SCRIPTS)]
            beside = self._talk(script, talk.outcome, KEYS[case.rng.randint(0, 1)])
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(lambda: [beside.ask() for _ in script.questions])
                time.sleep(case.rng.random())
                while len(talk.seen) < len(talk.script.questions):
                    talk.ask()
                asked.result()
            beside.check()
            return
        if talk.session_id is None:
            talk.ask()
        with ThreadPoolExecutor(2) as pool:
            replies = [reply.result() for reply in [pool.submit(talk.send) for _ in range(2)]]
        if sorted(reply.status for reply in replies) != [200, 409]:
            talk.outcome.note("other", f"answered {[(reply.status, reply.code) for reply in replies]}")
        for reply in replies:
            talk.judge(reply, allowed=(409,))
        for reply in replies:
            talk.take(reply)

    def _go_on(self, case: Case, talk: Talk) -> None:
        while len(talk.seen) < len(talk.script.questions) and not talk.outcome.found.get("hangs"):
            if talk.ask(stream=case.stream).answer is None:
                break
        later = talk.seen[case.turn - 1 :]
        talk.outcome.answers = len(later)
        talk.outcome.cached = sum(answer["usage"]["cached_tokens"] > 0 for answer in later)
        talk.check()

    def _clear(self, outcome: Outcome) -> None:
        """Delete all sessions; what the server then holds is a leak. A later turn makes up for a drop that failed."""
        self.stand.delete_all()
        if outcome.fault in SILENT or self.stand.server.held():
            time.sleep(FOUND_BACK_S)
            self._talk(SCRIPTS[0], outcome).ask()
            self.stand.delete_all()
        for key, size in self.stand.server.held().items():
            outcome.note("leaked", key, size)
        self.stand.server.client.flushall()

    def _talk(self, script: Script, outcome: Outcome, key: str = KEYS[0]) -> Talk:
        return Talk(self.stand, key, script, self._references[script.name].answers, outcome, self.deadline_s)

    def _another(self, script: Script) -> Reference:
        return next(reference for name, reference in self._references.items() if name != script.name)
