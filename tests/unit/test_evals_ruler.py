"""Generated tasks: their answers can be found in their texts, by rules written anew here."""

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from evals import ruler
from evals.needles import Haystack
from evals.ruler_tasks import TASKS, Material, Task

TOKENS = 6000  # characters here
Make = Callable[..., Task]


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    names = ["".join(random.Random(index).choices("abcdefgh", k=7)) for index in range(1000)]
    sentences = [" ".join(names[first : first + 9]) for first in range(0, 1000, 9)]
    (tmp_path / "a.txt").write_text(" end. ".join(sentences), encoding="utf-8")
    haystack = Haystack(tmp_path, encode)
    return lambda name, seed=0, tokens=TOKENS: TASKS[name](Material(haystack, encode, random.Random(seed)), tokens)


def written(task: Task) -> str:
    return "".join(map(chr, task.text))


def by_keys(task: Task) -> list[str]:
    """The numbers of the keys in the question, in its order."""
    numbers = dict(re.findall(r"The magic number of the (\w+ \w+) is (\d{5})\.", written(task)))
    return [numbers[key] for key in re.findall(r"the (\w+ \w+)(?: and|\?)", task.question)]


def by_one_key(task: Task) -> list[str]:
    key = re.search(r"numbers of the (\w+ \w+)", task.question)
    assert key
    return re.findall(rf"magic numbers of the {key[1]} is (\d{{5}})\.", written(task))


def by_variables(task: Task) -> list[str]:
    """All variables are worked out, line by line, as a program would."""
    values: dict[str, str] = {}
    for name, source in re.findall(r"VAR (\w+) = (\w+)\.", written(task)):
        values[name] = values.get(source, source)
    asked = re.search(r"\d{5}", task.question)
    assert asked
    return [name for name, value in values.items() if value == asked[0]]


def by_count(task: Task) -> list[str]:
    return [word for word, _ in Counter(re.findall(r"\w+", written(task))).most_common(3)]


SOLVE = {
    "single": by_keys,
    "multi_key": by_keys,
    "multi_query": by_keys,
    "multi_value": by_one_key,
    "variable_tracking": by_variables,
    "common_words": by_count,
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", TASKS)
def test_the_answer_follows_from_the_text_and_the_question(name: str, seed: int, make: Make) -> None:
    task = make(name, seed)
    assert sorted(SOLVE[name](task)) == sorted(task.expected)
    assert len(task.expected) == len(set(task.expected)) == (1 if name in ("single", "multi_key") else 3)


@pytest.mark.parametrize("name", TASKS)
def test_neither_question_nor_beginning_gives_the_answer_away(name: str, make: Make) -> None:
    task = make(name)
    assert not any(part in task.question + task.begin for part in task.expected)


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_makes_one_task_and_another_seed_another(name: str, make: Make) -> None:
    assert make(name, 3) == make(name, 3)
    assert make(name, 3).expected != make(name, 4).expected


@pytest.mark.parametrize("tokens", [2000, TOKENS])
@pytest.mark.parametrize("name", TASKS)
def test_a_text_has_its_length(name: str, tokens: int, make: Make) -> None:
    assert len(make(name, tokens=tokens).text) == pytest.approx(tokens, abs=10)  # a list ends with a whole word


def test_other_keys_and_variables_stand_between(make: Make) -> None:
    assert written(make("single")).count("magic number") == 1
    assert written(make("multi_key")).count("magic number") == 4
    assert written(make("variable_tracking")).count("VAR ") == 6


def test_a_haystack_with_too_few_words_is_refused(make: Make) -> None:
    with pytest.raises(SystemExit, match="too few different words"):
        make("common_words", tokens=20_000)


def test_tables_have_the_mean_of_every_task_and_of_all(tmp_path: Path) -> None:
    scores = [("single", 1.0, 1.0), ("single", 1.0, 0.5), ("common_words", 0.5, 0.0)]
    records = [
        {
            "task": task,
            ruler.KNOWN: {
                "full": {"score": full, "kept": 1.0},
                "snapkv 1/4 profile": {"score": row, "kept": 0.25},
            },
            ruler.UNKNOWN: {"full": {"score": full, "kept": 1.0}},
        }
        for task, full, row in scores
    ]
    table, header = ruler.table_of(records, ruler.KNOWN)
    assert header == ["question known", "single", "common_words", "mean", "kept"]
    assert table == {
        "full": ["1.00", "0.50", "0.833", "100.0%"],
        "snapkv 1/4 profile": ["0.75", "0.00", "0.500", "25.0%"],
    }
    assert ruler.table_of(records, ruler.UNKNOWN)[0] == {"full": ["1.00", "0.50", "0.833", "100.0%"]}
    ruler.plot(tmp_path / "plot.png", records)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
