"""What is drawn for a case, from its seed and number alone."""

import random
from dataclasses import dataclass, replace

from evals.faults.damage import DAMAGES
from evals.faults.scripts import SCRIPTS

MOMENTS = {
    # at the store: what the service sends to the server, or gets
    "before the head is read": ("store", "request", (b"HSTRLEN",), b""),
    "between two reads": ("store", "request", (b"GETRANGE",), b""),
    "before the chunks are written": ("store", "request", (b"SADD", b":seg:"), b""),
    "between the chunks and the commit": ("store", "answer", (b"SADD", b":seg:"), b"+OK"),
    "between the commit and the manifest": ("store", "request", (b"EVALSHA", b"manifest"), b""),
    "after the manifest": ("store", "answer", (b"EVALSHA", b"manifest"), b""),
    # at the door: what the client sends, or gets
    "before the request": ("door", "request", (b"POST /chat",), b""),
    "at the passages": ("door", "reply", (b"event: passages",), b""),
    "at a token": ("door", "reply", (b"event: delta",), b""),
    "at a citation": ("door", "reply", (b"event: citation",), b""),
    "before the answer": ("door", "reply", (b"finish_reason",), b""),
}
"""Name -> where, which traffic, its marks, and what a reply to it contains."""

DISTURBANCES = {
    "service killed": 6,
    "client disconnects": 12,
    "server killed": 6,
    "server paused": 4,
    "server full": 6,
    "server read-only": 6,
    "server evicts": 8,
    "slow by the byte": 2,
    "session deleted": 4,
}
"""What is done at a moment -> how often it is drawn."""

PAIRS = {"two turns at once": 8, "two sessions at once": 6}

WEIGHTS = {"none": 2, **dict.fromkeys(DAMAGES, 4), **DISTURBANCES, **PAIRS}


@dataclass(frozen=True)
class Case:
    """Turn `turn` (from 1) of a script is disturbed: at a moment, whose `nth` occasion is meant, or before it begins.

    `stream`: how the answer is asked for. `patient`: what follows waits until the service uses the server again.
    """

    seed: int
    number: int
    fault: str
    script: int
    turn: int
    stream: bool
    moment: str = ""
    nth: int = 1
    patient: bool = True

    @property
    def rng(self) -> random.Random:
        """For what is drawn while the case runs."""
        return random.Random(f"{self.seed}/{self.number}/run")

    @property
    def label(self) -> str:
        """For people."""
        when = f" {self.moment}, occasion {self.nth}" if self.moment else ""
        return f"{self.number}: {self.fault}{when}, turn {self.turn} of {SCRIPTS[self.script].name}"


def draw(seed: int, number: int, only: str | None = None) -> Case:
    """The case of that number. `only` a fault: all cases have it."""
    rng = random.Random(f"{seed}/{number}")
    fault = only or rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    turns = len(SCRIPTS[0].questions)
    case = Case(seed, number, fault, rng.randrange(len(SCRIPTS)), rng.randint(1, turns), rng.random() < 0.7)
    if fault in DAMAGES:
        first = 3 if fault == "older generation" else 2
        return replace(case, turn=rng.randint(first, turns))
    if fault not in DISTURBANCES:
        return replace(case, stream=True)
    moment = rng.choice(list(MOMENTS))
    if moment == "before the head is read" or moment == "between two reads":
        case = replace(case, turn=rng.randint(2, turns))
    if moment in ("at the passages", "at a token", "at a citation"):
        case = replace(case, stream=True)
    most = {"at a token": 8, "between two reads": 2, "between the chunks and the commit": 3}.get(moment, 1)
    return replace(case, moment=moment, nth=rng.randint(1, most), patient=rng.random() < 0.5)
