"""Sessions of the multi-turn evaluation on a tiny model: what they store, and what they are asked."""

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import PreTrainedModel

from evals import multiturn
from evals.kv_runs import Runner
from evals.turns import Document, Question, Session, Stored, documents
from kv_compression import Blend, ExpectedAttention, Full, KeyDiff, Knorm, SnapKV, Uniform, attach

TEXT = tuple(torch.randint(3, 96, (60,), generator=torch.Generator().manual_seed(1)).tolist())
QUESTIONS = (Question("aeiou", "gold", (12, 44, 8)), Question("xyz", "other", (7, 80, 3, 9)))
OPTIONS = {
    "scorers": ["knorm"],
    "budgets": [24],
    "working": [8],
    "selectors": ["snapkv"],
    "storage": ["bfloat16", "int4"],
    "answers": False,
    "apart": False,
    "seed": 0,
}


class Letters:
    """One token a letter, within the tiny model's vocabulary."""

    eos_token_id = 2

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [3 + ord(letter) % 90 for letter in text]

    def decode(self, token_ids: list[int]) -> str:
        return " ".join(map(str, token_ids))


@pytest.fixture
def runner(tiny_model: Callable[..., PreTrainedModel]) -> Runner:
    model = tiny_model(max_position_embeddings=512)
    attach(model)
    return Runner(model, cast(Any, Letters()), None)


def exact(runner: Runner) -> Stored:
    return Stored.of(runner.read(TEXT, []).cache.segment(0), None)


def expected_losses(runner: Runner) -> list[float]:
    """Of both turns, by one run over the whole conversation."""
    first = runner.question(QUESTIONS[0].text)
    second = runner.later_question(f"Question: {QUESTIONS[1].text}")
    tokens = [*TEXT, *first, *QUESTIONS[0].answer, *second, *QUESTIONS[1].answer]
    with torch.no_grad():
        losses = -runner.model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
    each = losses[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]
    start = len(TEXT) + len(first) - 1
    return [float(each[start : start + 3].mean()), float(each[-4:].mean())]


@pytest.mark.parametrize("working", [None, Full(), SnapKV(500, 8)])
def test_a_session_on_everything_gives_the_losses_of_the_whole_conversation(runner: Runner, working: Any) -> None:
    session = Session(runner, exact(runner), None, working)
    for question in QUESTIONS:
        session.ask(question)
    assert [turn.nll for turn in session.turns] == pytest.approx(expected_losses(runner), abs=1e-4)


def test_every_turn_is_stored_behind_the_document(runner: Runner) -> None:
    session = Session(runner, exact(runner), None)
    before = session.nbytes
    session.ask(QUESTIONS[0])
    added = len(runner.question(QUESTIONS[0].text)) + len(QUESTIONS[0].answer)
    assert session.stored[-1].segment.stop - session.stored[-1].segment.start == added
    numbers = added * 3 * 2 * 2 * 8  # layers, KV heads, keys and values, head_dim
    assert 2 * numbers < session.nbytes - before < 2 * numbers + 1000


def test_what_the_first_question_selects_is_all_that_is_left(runner: Runner) -> None:
    session = Session(runner, exact(runner), "bfloat16", SnapKV(20, 8), once=True)
    session.ask(QUESTIONS[0])
    assert {len(head.positions) for layer in session.stored[0].segment.layers for head in layer} == {20 + 3}
    session.ask(QUESTIONS[1])
    assert len(session.stored) == 2


def test_the_first_question_is_of_one_prompt_with_the_document(runner: Runner) -> None:
    question, policy = QUESTIONS[0], Blend(SnapKV(20, 8), ExpectedAttention(20), 0.9)
    whole = runner.read([*TEXT, *runner.question(question.text)], [policy])
    expected = runner.answer_nll(whole.select(policy, room=3), whole.logits, question.answer)
    seen = runner.read(TEXT, [policy]).observation
    session = Session(runner, exact(runner), None, policy, before=seen)
    session.ask(question)
    apart = Session(runner, exact(runner), None, policy)
    apart.ask(question)
    assert session.turns[0].nll == pytest.approx(expected, abs=1e-4) != apart.turns[0].nll


def test_an_archive_is_smaller_in_fewer_bits_and_close_to_what_it_was(runner: Runner) -> None:
    kept = runner.read(TEXT, []).select(KeyDiff(40), room=0).segment(0)
    stored = {storage: Stored.of(kept, storage) for storage in (None, "bfloat16", "int8", "int4")}
    assert stored[None].nbytes == stored["bfloat16"].nbytes > stored["int8"].nbytes > stored["int4"].nbytes
    assert stored[None].segment is kept
    for storage, most in (("bfloat16", 0.01), ("int8", 0.05), ("int4", 0.5)):
        difference = stored[storage].segment.layers[0].keys - kept.layers[0].keys
        assert 0 < float(difference.abs().max()) < most * float(kept.layers[0].keys.abs().max())


def test_a_document_is_measured_in_every_row(runner: Runner, tmp_path: Path) -> None:
    options = Namespace(**{**OPTIONS, "answers": True})
    table = multiturn.rows(options, {"uniform": Uniform()})
    names = [
        "full",
        "snapkv 8 uniform by the first question",
        "snapkv 8 uniform by each question",
        "full bfloat16",
        "full int4",
    ]
    archived = ["knorm 24 uniform bfloat16", "knorm 24 uniform int4"]
    assert [row.name for row in table] == [
        *names,
        *(name for archive in archived for name in (archive, f"{archive} > snapkv 8 uniform")),
    ]
    assert [row.archive for row in table[5:]] == [Knorm(24)] * 4
    measured = multiturn.measure(runner, Document("d", TEXT, QUESTIONS), table, options)
    assert [turn["nll"] for turn in measured["full"]["turns"]] == pytest.approx(expected_losses(runner), abs=1e-4)
    assert measured["knorm 24 uniform int4"]["bytes"] < measured["full int4"]["bytes"] < measured["full"]["bytes"]
    lines = multiturn.table_of([measured], seed=0, apart=False)
    assert lines["full"][2:6:3] == ["+0.0%", "1.0000"]
    assert all(len(line) == 9 for line in lines.values())
    multiturn.plot(tmp_path / "plot.png", [measured], apart=False)
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_questions_apart_know_nothing_of_each_other(runner: Runner) -> None:
    document = Document("d", TEXT, (*QUESTIONS, QUESTIONS[0]))
    row = multiturn.Row("full", None, None)
    asked = multiturn.ask(runner, document, exact(runner), None, row, Namespace(**{**OPTIONS, "apart": True}))
    losses = [turn["nll"] for turn in asked["turns"]]
    assert losses[0] == losses[2] != losses[1]


def test_documents_are_those_of_the_length_with_enough_questions(runner: Runner, tmp_path: Path) -> None:
    file, asked = tmp_path / "data.jsonl", [{"question": "q", "answers": [{"text": "a" * 60}]}]
    texts = [("short", 9, 2), ("few", 300, 1), ("one", 300, 2), ("long", 900, 2), ("two", 310, 3), ("three", 310, 3)]
    rows = [{"document_id": name, "text": "t" * size, "questions": asked * count} for name, size, count in texts]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = list(documents(file, runner, count=2, questions=2, tokens=(100, 600)))
    assert [document.name for document in found] == ["one", "two"]
    assert [len(question.answer) for question in found[1].questions] == [40, 40]
