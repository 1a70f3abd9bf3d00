"""An answer and its passages to citations: which sentence of the answer rests on which sentence of which passage. Pure.

A sentence of the answer is cited when the words that carry it (weighted by how rare they are among the passages'
sentences) stand in one sentence of a passage; of several that hold them equally, the one that holds more of the
question. Nothing depends on the model writing markers.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retriever import Passage

SUPPORT = 0.5  # share of a sentence's word weight that a source must hold
EVIDENCE = 0.6  # and how much weight that must be, in words that stand nowhere else
MAX_SOURCES = 2
SOURCE_WORDS = 2  # a heading's number or a lone word says nothing
# a run of text up to a full stop, a blank line or the end; neither "8.5 bar" nor "3. Oil" is two sentences
_SENTENCE = re.compile(
    r"(?:\(?\d{1,3}[.)]\s+)?\S(?:(?!\n\s*\n).)*?(?:[.!?](?=\s|\Z)|[。！？]|(?=\n\s*\n)|\Z)", re.DOTALL
)
_WORD = re.compile(r"[^\W_]+(?:[.,:/-][^\W_]+)*")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_STOP = frozenset(
    "a an and are as at be been by can do does for from had has have he her his how i if in into is it its may "
    "more no not of on or our she should so such than that the their them then there these they this those to was "
    "we were what when where which while who why will with would you your".split()
)


@dataclass(frozen=True)
class Source:
    """`cited_text` is the document's text from `start` to `end` (characters), byte for byte."""

    passage_id: str
    document_id: str
    title: str
    page: int
    start: int
    end: int
    cited_text: str


@dataclass(frozen=True)
class Citation:
    """`text` is the answer from `start` to `end` (characters); it rests on `sources`, the best first."""

    start: int
    end: int
    text: str
    sources: list[Source]


@dataclass(frozen=True)
class _Sentence:
    passage: Passage
    start: int
    end: int
    words: frozenset[str]


def cite(answer: str, passages: Sequence[Passage], question: str = "") -> list[Citation]:
    """The citations of `answer` to `question`, in its order; a sentence that no passage supports has none."""
    sentences = [sentence for passage in passages for sentence in _sentences(passage)]
    weight = _weights(sentences)
    asked = _words(question)
    citations = []
    for start, end in _spans(answer):
        sources = _support(_words(answer[start:end]), asked, sentences, weight)
        if sources:
            citations.append(Citation(start, end, answer[start:end], [_source(sentence) for sentence in sources]))
    return citations


def _support(
    words: frozenset[str], asked: frozenset[str], sentences: list[_Sentence], weight: dict[str, float]
) -> list[_Sentence]:
    total = sum(weight.get(word, weight[""]) for word in words)
    if total == 0:
        return []
    scored = [(sum(weight[word] for word in words & sentence.words) / total, sentence) for sentence in sentences]
    best = max((score for score, _ in scored), default=0.0)
    if best < SUPPORT or best * total < EVIDENCE * weight[""]:
        return []
    equal = [sentence for score, sentence in scored if score == best]
    of_question = [sum(weight[word] for word in sorted(asked & sentence.words)) for sentence in equal]
    most = max(of_question)
    return [sentence for held, sentence in zip(of_question, equal, strict=True) if held == most][:MAX_SOURCES]


def _weights(sentences: list[_Sentence]) -> dict[str, float]:
    """Inverse document frequency of every word; "" stands for a word that no sentence holds."""
    counts = Counter(word for sentence in sentences for word in sentence.words)
    weights = {word: math.log(1 + len(sentences) / count) for word, count in counts.items()}
    weights[""] = math.log(1 + len(sentences))
    return weights


def _sentences(passage: Passage) -> Iterator[_Sentence]:
    for start, end in _spans(passage.text):
        words = _words(passage.text[start:end])
        if len(words) >= SOURCE_WORDS:
            yield _Sentence(passage, start, end, words)


def _spans(text: str) -> Iterator[tuple[int, int]]:
    for match in _SENTENCE.finditer(text):
        end = match.start() + len(match.group().rstrip())
        if _words(text[match.start() : end]):
            yield match.start(), end


def _words(text: str) -> frozenset[str]:
    words: set[str] = set()
    for word in _WORD.findall(text.casefold()):
        if _CJK.search(word):  # no blanks between words: pairs of characters stand for them
            words.update(word[i : i + 2] for i in range(max(len(word) - 1, 1)))
        elif word not in _STOP:
            words.add(word)
    return frozenset(words)


def _source(sentence: _Sentence) -> Source:
    passage = sentence.passage
    return Source(
        passage_id=passage.passage_id,
        document_id=passage.document_id,
        title=passage.title,
        page=passage.page,
        start=passage.start + sentence.start,
        end=passage.start + sentence.end,
        cited_text=passage.text[sentence.start : sentence.end],
    )
