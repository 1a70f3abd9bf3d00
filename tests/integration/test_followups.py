"""What a turn may use in conversations of four turns and more: short replies, changed subjects, returns to old ones."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from app.conversation import Conversation
from app.evidence import gather
from app.sessions import TurnRecord
from retriever import Document, Retriever

DOCUMENTS = {
    "oil.md": "# Main pump\n\nThe oil of the main pump is changed every 400 hours, since it turns acid with heat.",
    "gate.md": "# Sluice gates\n\nThe first sluice gate weighs 900 kilograms, the second sluice gate 700 kilograms.",
    "warden.md": "# Wardens\n\nThe night warden of the weir is Marta Quill. She can be called at extension 5521.",
    "bread.md": "# Canteen\n\nThe sourdough of the canteen rests for eighteen hours before it is baked at 240 degrees.",
}


class Talk:
    """A conversation whose every answer cites the best passage found."""

    def __init__(self, retriever: Retriever, make_turn: Callable[..., TurnRecord]) -> None:
        self._retriever = retriever
        self._make_turn = make_turn
        self._turns: list[TurnRecord] = []

    def say(self, message: str, top_k: int = 2) -> list[str]:
        """The texts that the turn may use, best first; [] for silence."""
        sequence = [1] if any(turn.passages for turn in self._turns) else []
        conversation = Conversation("t", "default", "f", turns=self._turns, sequence=sequence)
        found = gather(self._retriever, conversation, "t", message, top_k)
        turn = asdict(self._make_turn(len(self._turns) + 1))
        sources: list[dict[str, Any]] = [{"passage_id": found[0].passage_id}] if found else []
        turn |= {"message": message, "answerable": bool(found), "passages": [asdict(passage) for passage in found]}
        turn |= {"citations": [{"sources": sources}] if found else []}
        self._turns.append(TurnRecord(**turn))
        self.in_session = [passage.in_session for passage in found]
        return [passage.text for passage in found]


@pytest.fixture
def talk(retriever: Retriever, ingest: Callable[..., Document], make_turn: Callable[..., TurnRecord]) -> Talk:
    """About a weir and its canteen."""
    for name, content in DOCUMENTS.items():
        ingest(name, content)
    return Talk(retriever, make_turn)


def test_short_replies_stay_with_the_subject(talk: Talk) -> None:
    assert "400 hours" in talk.say("How often is the oil of the main pump changed?")[0]
    for reply in ("why?", "yes", "and then?"):
        assert "400 hours" in talk.say(reply)[0], reply
        assert talk.in_session[0], reply


def test_the_second_one_is_of_the_kind_spoken_of(talk: Talk) -> None:
    assert "900" in talk.say("How much does the first sluice gate weigh?")[0]
    assert "700" in talk.say("and the second one?")[0]
    assert "700" in talk.say("yes")[0]
    assert "700" in talk.say("why?")[0]


def test_a_changed_subject_and_a_return_to_the_old_one(talk: Talk) -> None:
    assert "400 hours" in talk.say("How often is the oil of the main pump changed?")[0]
    assert "sourdough" in talk.say("How long does the sourdough of the canteen rest?")[0]
    assert "240 degrees" in talk.say("and at how many degrees is it baked?")[0]
    assert "400 hours" in talk.say("Back to the main pump: why is its oil changed?")[0]
    assert talk.in_session[0]
    assert "400 hours" in talk.say("why?")[0]


def test_silence_is_decided_anew_at_every_turn(talk: Talk) -> None:
    assert "Marta Quill" in talk.say("Who is the night warden of the weir?")[0]
    assert talk.say("Which football club won the European championship in Lisbon?") == []
    assert "5521" in talk.say("At which extension can the night warden be called?")[0]
    assert talk.say("What does a flight from Oslo to Madrid cost?") == []
    assert "900" in talk.say("How much does the first sluice gate weigh?")[0]


def test_what_the_last_answer_cited_is_carried_forward(talk: Talk) -> None:
    first = talk.say("How often is the oil of the main pump changed?", top_k=1)
    second = talk.say("How much does the first sluice gate weigh?", top_k=1)
    assert second[1:] == first
    third = talk.say("Who is the night warden of the weir?", top_k=1)
    assert "Marta Quill" in third[0]
    assert "900" in third[1]
    assert len(talk.say("How long does the sourdough of the canteen rest?", top_k=1)) == 2
