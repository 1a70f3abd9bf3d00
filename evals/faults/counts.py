"""What went wrong in a case, and the table by fault. Every count must be 0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KINDS = ("wrong", "5xx", "hangs", "lost", "leaked", "other")
HEADER = ("fault", "cases", "disturbed", "from cache", *KINDS)


@dataclass
class Outcome:
    """found: kind -> how often (bytes for `leaked`). disturbed: the moment came. cached, answers: of the turns from the
    disturbed one on, those that used a stored cache, and all."""

    fault: str
    number: int
    found: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    disturbed: bool = True
    cached: int = 0
    answers: int = 0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Nothing went wrong."""
        return not any(self.found.values())

    def note(self, kind: str, what: str, count: int = 1) -> None:
        """One more thing that went wrong."""
        self.found[kind] = self.found.get(kind, 0) + count
        self.notes.append(f"{kind}: {what}")


@dataclass(frozen=True)
class Reply:
    """What came of a request. status 0: the connection broke. `text`: of a stream, as far as it came."""

    status: int
    seconds: float
    answer: dict[str, Any] | None = None
    code: str = ""
    retry_after: bool = False
    text: str = ""
    session_id: str | None = None


def essence(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same whatever happened: all but names, times, and how much came from a cache."""
    citations = [
        (citation["start"], citation["end"], [source["cited_text"] for source in citation["sources"]])
        for citation in answer["citations"]
    ]
    same = {name: answer[name] for name in ("turn", "answer", "answerable", "finish_reason", "notices")}
    usage = {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return {**same, **usage, "citations": citations, "passages": [passage["text"] for passage in answer["passages"]]}


def judge(
    outcome: Outcome,
    reply: Reply,
    reference: Mapping[str, Any],
    *,
    deadline_s: float,
    broken: bool = False,
    allowed: Sequence[int] = (),
) -> None:
    """Note what is wrong with a reply. `broken`: the connection may have been broken by the fault itself."""
    if reply.seconds > deadline_s:
        outcome.note("hangs", f"{reply.seconds:.1f} s")
    if reply.answer is not None and (differing := differences(reply.answer, reference)):
        outcome.note("wrong", "; ".join(differing))
    if not str(reference["answer"]).startswith(reply.text):
        outcome.note("wrong", f"streamed {reply.text!r}, not a start of {reference['answer']!r}")
    if reply.status >= 500 and not (reply.status == 503 and reply.code and reply.retry_after):
        outcome.note("5xx", f"{reply.status} {reply.code}")
    elif reply.status == 0 and not broken:
        outcome.note("other", "the connection broke")
    elif 400 <= reply.status < 500 and reply.status not in allowed:
        outcome.note("other", f"{reply.status} {reply.code}")


def differences(answer: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """Field by field, what is not as in the undisturbed session."""
    got, expected = essence(answer), essence(reference)
    return [f"{name}: {got[name]!r}, not {expected[name]!r}" for name in got if got[name] != expected[name]]


def table(outcomes: Sequence[Outcome]) -> dict[str, list[object]]:
    """Fault -> the columns of HEADER after the first; the last row is the sum."""
    by_fault: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_fault.setdefault(outcome.fault, []).append(outcome)
    rows = {fault: _row(of_fault) for fault, of_fault in sorted(by_fault.items())}
    return {**rows, "all": _row(outcomes)}


def _row(outcomes: Sequence[Outcome]) -> list[object]:
    cached, answers = sum(outcome.cached for outcome in outcomes), sum(outcome.answers for outcome in outcomes)
    counts = [sum(outcome.found.get(kind, 0) for outcome in outcomes) for kind in KINDS]
    return [len(outcomes), sum(outcome.disturbed for outcome in outcomes), f"{cached}/{answers}", *counts]
