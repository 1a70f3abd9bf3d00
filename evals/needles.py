"""Needles: sentences of several kinds to be hidden in a haystack, and the prompts that hide them."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PLACES = """lighthouse harbour orchard library station theatre garden museum bakery mill chapel castle brewery school
    stadium market""".split()
FIRST_NAMES = "Agnes Boris Clara Dmitri Edith Fergus Greta Hector Ingrid Jasper Lydia Marcus".split()
LAST_NAMES = "Ashdown Bergman Calloway Drummond Everard Fairfax Holloway Kingsley Lindqvist Mortimer".split()
ACTIONS = "carry paint polish water feed count hide wash".split()
ADJECTIVES = "copper purple wooden striped golden tiny crooked silent".split()
OBJECTS = "umbrella goose kettle ladder violin cactus clock lantern".split()
NUMBER = "The secret number of the {place} is {number}."
NUMBER_QUESTION = "What is the secret number of the {place}?"
DISTRACTORS = 4

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Needle:
    """Statements to hide, what is asked, and the strings that the answer must hold. Distractors answer other questions.

    The first statement lies at the depth of the draw, the next half of the text further on, and so forth.
    """

    statements: tuple[str, ...]
    question: str
    expected: tuple[str, ...]
    distractors: tuple[str, ...] = ()


def digits(draw: random.Random) -> Needle:
    """A number of five digits."""
    place, number = draw.choice(PLACES), _number(draw)
    statement = NUMBER.format(place=place, number=number)
    return Needle((statement,), NUMBER_QUESTION.format(place=place), (number,))


def names(draw: random.Random) -> Needle:
    """A person's name."""
    place, name = draw.choice(PLACES), f"{draw.choice(FIRST_NAMES)} {draw.choice(LAST_NAMES)}"
    return Needle((f"The keeper of the {place} is {name}.",), f"Who is the keeper of the {place}?", (name,))


def sentences(draw: random.Random) -> Needle:
    """Something to do, in some words."""
    place = draw.choice(PLACES)
    duty = f"{draw.choice(ACTIONS)} the {draw.choice(ADJECTIVES)} {draw.choice(OBJECTS)}"
    statement = f"Every visitor of the {place} must {duty}."
    return Needle((statement,), f"What must every visitor of the {place} do?", (duty,))


def two(draw: random.Random) -> Needle:
    """Two numbers, half of the text apart, asked for at once."""
    first, second = draw.sample(PLACES, 2)
    numbers = _number(draw), _number(draw)
    statements = tuple(
        NUMBER.format(place=place, number=number) for place, number in zip((first, second), numbers, strict=True)
    )
    return Needle(statements, f"What are the secret numbers of the {first} and of the {second}?", numbers)


def distractors(draw: random.Random) -> Needle:
    """A number among those of other places."""
    place, *others = draw.sample(PLACES, 1 + DISTRACTORS)
    number = _number(draw)
    wrong = tuple(NUMBER.format(place=other, number=_number(draw)) for other in others)
    statement = NUMBER.format(place=place, number=number)
    return Needle((statement,), NUMBER_QUESTION.format(place=place), (number,), wrong)


KINDS: dict[str, Callable[[random.Random], Needle]] = {
    kind.__name__: kind for kind in (digits, names, sentences, two, distractors)
}


class Haystack:
    """The sentences of a folder's texts, in the order of the files' names. SystemExit when there are none."""

    def __init__(self, folder: Path, encode: Encode) -> None:
        paths = [path for path in sorted(folder.rglob("*")) if path.suffix in (".txt", ".md")]
        texts = [" ".join(path.read_text(encoding="utf-8").split()) for path in paths]
        self._sentences = [sentence for text in texts for sentence in text.split(". ") if sentence]
        self._encode = encode
        if not self._sentences:
            raise SystemExit(f"{folder} has no .txt or .md files.")

    def sentences(self, tokens: int, draw: random.Random) -> list[list[int]]:
        """Token ids of sentences that follow one another from a random one on, `tokens` in all; the last may be cut."""
        taken: list[list[int]] = []
        for sentence in self._from(draw.randrange(len(self._sentences))):
            ids = self._encode(f" {sentence.rstrip('.')}.")
            taken.append(ids[:tokens])
            tokens -= len(ids)
            if tokens <= 0:
                break
        return taken

    def words(self, draw: random.Random) -> list[str]:
        """The different words of five to nine letters, in random order."""
        found = {word for sentence in self._sentences for word in sentence.lower().split()}
        plain = sorted(word for word in found if word.isascii() and word.isalpha() and 5 <= len(word) <= 9)
        draw.shuffle(plain)
        return plain

    def _from(self, start: int) -> Iterator[str]:
        while True:
            yield from self._sentences[start:]
            start = 0


def hide(statements: Sequence[tuple[float, list[int]]], sentences: Sequence[list[int]]) -> list[int]:
    """Token ids of the sentences, with each statement between two of them, at its depth of the tokens (0 to 1)."""
    total = sum(map(len, sentences))
    waiting = sorted(statements, key=lambda statement: statement[0])
    tokens: list[int] = []
    passed = 0
    for sentence in sentences:
        while waiting and passed >= waiting[0][0] * total:
            tokens += waiting.pop(0)[1]
        tokens += sentence
        passed += len(sentence)
    return tokens + [token for _, statement in waiting for token in statement]


def text(
    needle: Needle, haystack: Haystack, tokens: int, depth: float, draw: random.Random, encode: Encode
) -> list[int]:
    """Token ids of a text of `tokens` tokens with the needle in it."""
    hidden = [
        ((depth + index / len(needle.statements)) % 1, encode(f" {statement}"))
        for index, statement in enumerate(needle.statements)
    ]
    hidden += [(draw.random(), encode(f" {statement}")) for statement in needle.distractors]
    return hide(hidden, haystack.sentences(tokens - sum(len(ids) for _, ids in hidden), draw))


def _number(draw: random.Random) -> str:
    return str(draw.randint(10_000, 99_999))
