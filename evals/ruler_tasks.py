"""Generated tasks in RULER's manner (Hsieh et al., https://arxiv.org/abs/2404.06654), small enough for a small model.

Each makes a text of a given length, a question, the beginning of its answer, and the strings that the answer must hold.
"""

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evals.needles import Encode, Haystack, hide

ADJECTIVES = "amber brisk calm dusty eager faint gentle hollow ivory jolly keen lucky mellow noble olive plain".split()
ANIMALS = (
    "badger camel dolphin eagle falcon gibbon heron ibis jackal lemur magpie otter parrot raven seal tiger".split()
)
ASKED = 3  # values of a key, keys asked for at once, variables of a chain, common words
OTHERS = 3  # keys and variables that are not asked for
REPEATS = 16  # of a common word; the others come once


@dataclass(frozen=True)
class Task:
    """text: token ids. begin: first words of the answer, given to the model. expected: strings to be found in it."""

    text: list[int]
    question: str
    begin: str
    expected: tuple[str, ...]


@dataclass(frozen=True)
class Material:
    """What tasks are made of."""

    haystack: Haystack
    encode: Encode
    draw: random.Random

    def keys(self, count: int) -> list[str]:
        """Different names of things."""
        return self.draw.sample([f"{adjective} {animal}" for adjective in ADJECTIVES for animal in ANIMALS], count)

    def numbers(self, count: int) -> tuple[str, ...]:
        """Different numbers of five digits."""
        return tuple(map(str, self.draw.sample(range(10_000, 100_000), count)))

    def variables(self, count: int) -> list[str]:
        """Different names of four capital letters."""
        codes = self.draw.sample(range(26**4), count)
        return ["".join(string.ascii_uppercase[code // 26**place % 26] for place in range(4)) for code in codes]

    def scattered(self, statements: Sequence[str], tokens: int) -> list[int]:
        """A text of `tokens` tokens with the statements in it, in their order, at random depths."""
        ids = [self.encode(f" {statement}") for statement in statements]
        depths = sorted(self.draw.random() for _ in ids)
        sentences = self.haystack.sentences(tokens - sum(map(len, ids)), self.draw)
        return hide(list(zip(depths, ids, strict=True)), sentences)


def single(material: Material, tokens: int) -> Task:
    """One number, by its key."""
    return _by_keys(material, tokens, asked=1, others=0)


def multi_key(material: Material, tokens: int) -> Task:
    """One number, by its key, among those of other keys."""
    return _by_keys(material, tokens, asked=1, others=OTHERS)


def multi_query(material: Material, tokens: int) -> Task:
    """The numbers of several keys, one each."""
    return _by_keys(material, tokens, asked=ASKED, others=0)


def multi_value(material: Material, tokens: int) -> Task:
    """All numbers of one key."""
    (key,), numbers = material.keys(1), material.numbers(ASKED)
    text = material.scattered([f"One of the magic numbers of the {key} is {number}." for number in numbers], tokens)
    question = f"What are the {ASKED} magic numbers of the {key}?"
    return Task(text, question, f"The magic numbers of the {key} are", numbers)


def variable_tracking(material: Material, tokens: int) -> Task:
    """All variables of a chain: the first has a value, each of the others that of the one before."""
    value, *wrong = material.numbers(1 + OTHERS)
    names = material.variables(ASKED + OTHERS)
    chain = names[:ASKED]
    statements = [f"VAR {name} = {source}." for name, source in zip(chain, [value, *chain], strict=False)]
    for name, number in zip(names[ASKED:], wrong, strict=True):
        statements.insert(material.draw.randint(0, len(statements)), f"VAR {name} = {number}.")
    question = f"Which {ASKED} variables have the value {value}, given to them or taken from another?"
    begin = f"The variables with the value {value} are"
    return Task(material.scattered(statements, tokens), question, begin, tuple(chain))


def common_words(material: Material, tokens: int) -> Task:
    """The words that come again and again in a list of words."""
    words = iter(material.haystack.words(material.draw))
    common = [next(words) for _ in range(ASKED)]
    listed = common * REPEATS
    room = tokens - sum(len(material.encode(f" {word},")) for word in listed)
    while room > 0:
        word = next(words, None)
        if word is None:
            raise SystemExit(f"The haystack has too few different words for a list of {tokens} tokens.")
        listed.append(word)
        room -= len(material.encode(f" {word},"))
    material.draw.shuffle(listed)
    text = material.encode("".join(f" {word}," for word in listed))
    question = f"Which {ASKED} words come most often in the list?"
    return Task(text, question, "The words that come most often are", tuple(common))


TASKS: dict[str, Callable[[Material, int], Task]] = {
    task.__name__: task for task in (single, multi_key, multi_value, multi_query, variable_tracking, common_words)
}


def _by_keys(material: Material, tokens: int, asked: int, others: int) -> Task:
    """The first keys are asked for; all statements are in random order."""
    keys, numbers = material.keys(asked + others), material.numbers(asked + others)
    statements = [f"The magic number of the {key} is {number}." for key, number in zip(keys, numbers, strict=True)]
    material.draw.shuffle(statements)
    named = " and ".join(f"the {key}" for key in keys[:asked])
    question = f"What is the magic number of {named}?" if asked == 1 else f"What are the magic numbers of {named}?"
    text = material.scattered(statements, tokens)
    return Task(text, question, f"The magic number of the {keys[0]} is", numbers[:asked])
