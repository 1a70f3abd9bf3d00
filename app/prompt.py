"""Passages, history and question to a prompt: the tokens a turn adds to its session, with the span of every passage.

Pure, apart from the tokenizer. The chat template frames the text; what people and documents wrote is encoded with
special tokens switched off, so that a passage that contains `<|im_end|>` stays text. The rules and the passages come
first and are byte-stable; the question comes last, where the observation window sees it.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from app.errors import QuestionTooLongError
from retriever import Passage

# Short, because small models answer better under short rules: docs/experiments.md has the count.
RULES = "Answer the question using only the text."
# stands for a content while the template is rendered; a private-use character never occurs in a template
_MARK = "\ue000"


@dataclass(frozen=True)
class Exchange:
    """An earlier turn as text: what was asked and what was answered."""

    message: str
    answer: str


@dataclass(frozen=True)
class PassageSpan:
    """`token_ids[start:end]` of the prompt are the text of this passage."""

    passage_id: str
    start: int
    end: int


@dataclass(frozen=True)
class Prompt:
    """`token_ids` go behind what the session holds, or stand alone when `starts_over`."""

    token_ids: list[int]
    spans: list[PassageSpan]
    passages: list[Passage]
    left_out: int
    starts_over: bool


class PromptBuilder:
    """Builds prompts for one tokenizer and one context length, in tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context_tokens: int) -> None:
        self.context_tokens = context_tokens
        self._tokenizer = tokenizer

    def begin(
        self, passages: Sequence[Passage], question: str, max_tokens: int, history: Sequence[Exchange] = ()
    ) -> Prompt:
        """A prompt that stands alone. Passages that do not fit are left out, last first; so are the oldest exchanges.

        Raises QuestionTooLongError when rules and question alone leave no room for the answer.
        """
        room = self.context_tokens - max_tokens
        bare = self._fill(self._frame([]), [], question)
        if len(bare.token_ids) > room:
            limit = room - (len(bare.token_ids) - len(self._plain(question)))
            raise QuestionTooLongError(len(self._plain(question)), max(limit, 0), "tokens")
        kept = self._recent(history, (room - len(bare.token_ids)) // 4)
        return self._fit(self._frame(kept), passages, question, room)

    def extend(self, held: int, passages: Sequence[Passage], question: str, max_tokens: int) -> Prompt | None:
        """The tokens that go on behind a sequence of `held` tokens; None when not all of it fits."""
        prompt = self._fill(self._continuation(), passages, question)
        if held + len(prompt.token_ids) + max_tokens > self.context_tokens:
            return None
        return Prompt(prompt.token_ids, prompt.spans, prompt.passages, left_out=0, starts_over=False)

    def _fit(self, frame: "_Frame", passages: Sequence[Passage], question: str, room: int) -> Prompt:
        fitting = list(passages)
        prompt = self._fill(frame, fitting, question)
        while len(prompt.token_ids) > room and fitting:
            fitting.pop()
            prompt = self._fill(frame, fitting, question)
        left_out = len(passages) - len(fitting)
        return Prompt(prompt.token_ids, prompt.spans, fitting, left_out, starts_over=True)

    def _fill(self, frame: "_Frame", passages: Sequence[Passage], question: str) -> Prompt:
        """Put the passages and the question into the frame."""
        token_ids = list(frame.before)
        spans = []
        for passage in reversed(passages):  # the best one stands next to the question
            token_ids += self._plain(f"{passage.title}, page {passage.page}:\n")
            start = len(token_ids)
            token_ids += self._plain(passage.text)
            spans.append(PassageSpan(passage.passage_id, start, len(token_ids)))
            token_ids += self._plain("\n\n")
        token_ids += self._plain(f"Question: {question}")
        return Prompt(token_ids + frame.after, spans, list(passages), left_out=0, starts_over=True)

    def _frame(self, history: Sequence[Exchange]) -> "_Frame":
        """Everything around the last user message of a prompt that stands alone."""
        contents = [RULES, *itertools.chain.from_iterable((turn.message, turn.answer) for turn in history)]
        roles = ["system", *itertools.chain.from_iterable(("user", "assistant") for _ in history), "user"]
        before, *between, after = self._render(roles)
        token_ids = self._special(before)
        for content, text in zip(contents, between, strict=True):
            token_ids += self._plain(content) + self._special(text)
        return _Frame(token_ids, self._special(after))

    def _continuation(self) -> "_Frame":
        """Everything around a user message that follows an answer, from the end of that answer on."""
        _, _, between, after = self._render(["user", "assistant", "user"])
        return _Frame(self._special(between), self._special(after))

    def _render(self, roles: Sequence[str]) -> list[str]:
        """The template's text around the contents of a conversation: len(roles) + 1 pieces."""
        messages = [{"role": role, "content": _MARK} for role in roles]
        try:
            text = self._template(messages)
        except TemplateError:  # some templates know no system role: the rules then stand in the user's message
            text = self._template(messages[1:]).replace(_MARK, f"{_MARK}\n\n{_MARK}", 1)
        return text.split(_MARK)

    def _template(self, messages: list[dict[str, str]]) -> str:
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        return text

    def _recent(self, history: Sequence[Exchange], room: int) -> list[Exchange]:
        """The last exchanges that fit into `room` tokens."""
        return list(reversed(list(self._fitting(reversed(history), room))))

    def _fitting(self, exchanges: Iterator[Exchange], room: int) -> Iterator[Exchange]:
        for exchange in exchanges:
            room -= len(self._plain(exchange.message)) + len(self._plain(exchange.answer)) + 16
            if room < 0:
                return
            yield exchange

    def _special(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


@dataclass(frozen=True)
class _Frame:
    before: list[int]
    after: list[int]
