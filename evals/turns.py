"""Sessions on one document: what is stored of it, and every turn's likelihood and answer from that."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evals.kv_runs import Runner
from evals.scores import contained, f1
from kv_compression import (
    KVCache,
    Observation,
    Policy,
    QueryStatistics,
    Segment,
    Storage,
    decode_segment,
    encode_segment,
    join,
)

ANSWER_TOKENS = 40


@dataclass(frozen=True)
class Question:
    """A question about a document with its gold answer, as text and as tokens; of the answer at most 40."""

    text: str
    gold: str
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Document:
    """The tokens of a prompt up to the end of the text, and the questions that are asked about it, in turn."""

    name: str
    token_ids: tuple[int, ...]
    questions: tuple[Question, ...]


def documents(path: Path, runner: Runner, count: int, questions: int, tokens: tuple[int, int]) -> Iterator[Document]:
    """The first `count` of a file of JSON lines that are as long as `tokens` (from, to) and have so many questions."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            token_ids = tuple(runner.opening(row["text"]))
            asked = [(item["question"], item["answers"][0]["text"]) for item in row["questions"]][:questions]
            if not tokens[0] <= len(token_ids) <= tokens[1] or len(asked) < questions:
                continue
            answers = [Question(text, gold, tuple(runner.encode(gold)[:ANSWER_TOKENS])) for text, gold in asked]
            yield Document(row["document_id"], token_ids, tuple(answers))
            count -= 1
            if count == 0:
                return


@dataclass(frozen=True)
class Stored:
    """A piece of a cache as it comes back from the store, and the bytes that it took there."""

    segment: Segment
    nbytes: int

    @classmethod
    def of(cls, segment: Segment, storage: str | None) -> "Stored":
        """Written and read again in one of the codec's formats (`int4/32`: in groups of 32).

        None: unchanged, with the bytes that bfloat16 takes.
        """
        name, _, group = (storage or "bfloat16").partition("/")
        chunks = encode_segment(segment, "", storage=Storage(name, group=int(group or 64)))
        return cls(decode_segment(chunks, "") if storage else segment, sum(map(len, chunks)))


@dataclass(frozen=True)
class Turn:
    """The gold answer's mean negative log-likelihood per token; F1 and containment of a greedy answer if any."""

    nll: float
    f1: float | None = None
    contained: bool | None = None


class Session:
    """Turns on what is stored of a document. Each turn's own entries are stored behind it, in the same format.

    working: the policy that selects from it by every turn's question; without one, answers come from all that is
    stored. once: only the first turn selects, and what it keeps replaces what was stored. answers: answer greedily as
    well. storage: the codec's format; None for what is stored unchanged. before: what was observed of the document,
    when the first question is part of the same prompt.
    """

    def __init__(
        self,
        runner: Runner,
        document: Stored,
        storage: str | None,
        working: Policy | None = None,
        *,
        once: bool = False,
        answers: bool = False,
        before: Observation | None = None,
    ) -> None:
        self.runner, self.storage, self.working, self.once, self.answers = runner, storage, working, once, answers
        self.before = before
        self.stored = [document]
        self.turns: list[Turn] = []

    @property
    def nbytes(self) -> int:
        """Stored now."""
        return sum(piece.nbytes for piece in self.stored)

    def ask(self, question: Question) -> None:
        """One turn, with the gold answer as its answer for the turns to come."""
        prompt = self.runner.question(question.text)
        if self.turns:
            prompt = self.runner.later_question(f"Question: {question.text}")
        cache = self._cache(len(prompt) + ANSWER_TOKENS)
        take_turn = self._from_all if self.working is None else self._from_selected
        self.turns.append(take_turn(cache, prompt, question))

    def _from_all(self, cache: KVCache, prompt: Sequence[int], question: Question) -> Turn:
        start, text = cache.length, None
        if self.answers:
            asked = cache.copy(room=len(prompt) + ANSWER_TOKENS)
            text = self.runner.answer(asked, self.runner.prefill(asked, prompt).logits, ANSWER_TOKENS)
        loss = self.runner.nll(cache, prompt, question.answer)
        self._store(cache.segment(start))
        return _turn(loss, text, question)

    def _from_selected(self, cache: KVCache, prompt: Sequence[int], question: Question) -> Turn:
        assert self.working is not None
        start, text = cache.length, None
        run = self.runner.prefill(cache, prompt, [self.working])
        working = cache.select(self.working, self._of_prompt(run.observation), room=ANSWER_TOKENS)
        if self.answers:
            text = self.runner.answer(working.copy(room=ANSWER_TOKENS), run.logits, ANSWER_TOKENS)
        loss = self.runner.answer_nll(working, run.logits, question.answer)
        if self.once:
            self.stored, self.working = [], None
            self._store(working.segment(0))
        else:
            self._store(join(cache.segment(start), working.segment(cache.length)))
        return _turn(loss, text, question)

    def _of_prompt(self, question: Observation) -> Observation:
        """With the statistics of the document's queries, if that belongs to the prompt."""
        before, self.before = self.before, None
        if before is None:
            return question
        layers = {
            index: replace(layer, statistics=_sum(before.of(index).statistics, layer.statistics))
            for index, layer in question.layers.items()
        }
        return replace(question, layers=layers)

    def _cache(self, room: int) -> KVCache:
        model, segments = self.runner.model, [piece.segment for piece in self.stored]
        return KVCache.from_segments(model.config, segments, device=model.device, dtype=model.dtype, room=room)

    def _store(self, segment: Segment) -> None:
        self.stored.append(Stored.of(segment, self.storage))


def _sum(first: QueryStatistics | None, second: QueryStatistics | None) -> QueryStatistics | None:
    return None if first is None or second is None else first + second


def _turn(nll: float, text: str | None, question: Question) -> Turn:
    if text is None:
        return Turn(nll)
    return Turn(nll, f1(text, question.gold), contained(text, question.gold))
