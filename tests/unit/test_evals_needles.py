"""Needles, scores, row tables and plots of the evaluations."""

import random
from fractions import Fraction
from pathlib import Path

import pytest

from evals import needle, policies
from evals.needles import KINDS, Haystack, hide, text
from evals.plots import heatmaps, lines
from evals.scores import contained, f1, holds, relative_interval
from kv_compression import POLICIES, FastGen, Full, Profile, Uniform


def encode(characters: str) -> list[int]:
    return [ord(character) for character in characters]


def decode(token_ids: list[int]) -> str:
    return "".join(map(chr, token_ids))


@pytest.fixture
def haystack(tmp_path: Path) -> Haystack:
    (tmp_path / "b.md").write_text("Third one. Fourth one.", encoding="utf-8")
    (tmp_path / "a.txt").write_text("First one. Second\none. ", encoding="utf-8")
    (tmp_path / "c.bin").write_bytes(b"\xff")
    return Haystack(tmp_path, encode)


def test_a_haystack_goes_round_from_a_random_start(haystack: Haystack) -> None:
    taken = haystack.sentences(100, random.Random(0))
    assert sum(map(len, taken)) == 100
    whole = " First one. Second one. Third one. Fourth one." * 4
    assert decode([token for sentence in taken for token in sentence]) in whole
    starts = {decode(haystack.sentences(3, random.Random(seed))[0]) for seed in range(30)}
    assert starts == {" Fi", " Se", " Th", " Fo"}


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no \.txt or \.md files"):
        Haystack(tmp_path, encode)


@pytest.mark.parametrize(
    ("depth", "expected"), [(0.0, "Naabbcc"), (0.2, "aaNbbcc"), (0.6, "aabbNcc"), (0.9, "aabbccN"), (1.0, "aabbccN")]
)
def test_a_statement_is_hidden_behind_the_first_sentence_that_reaches_its_depth(depth: float, expected: str) -> None:
    assert decode(hide([(depth, encode("N"))], [encode("aa"), encode("bb"), encode("cc")])) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_its_length_and_holds_the_answer(kind: str, haystack: Haystack) -> None:
    draw = random.Random(1)
    hidden = KINDS[kind](draw)
    written = decode(text(hidden, haystack, 900, 0.3, draw, encode))
    assert len(written) == 900
    assert all(f" {statement}" in written for statement in (*hidden.statements, *hidden.distractors))
    assert holds(written, hidden.expected) == len(hidden.expected) == len(hidden.statements)
    assert not holds(" ".join([*hidden.distractors, hidden.question]), hidden.expected)


def test_two_needles_lie_half_of_the_text_apart(haystack: Haystack) -> None:
    draw = random.Random(1)
    hidden = KINDS["two"](draw)
    written = decode(text(hidden, haystack, 4000, 0.3, draw, encode))
    first, second = (written.index(statement) / 4000 for statement in hidden.statements)
    assert (round(first, 1), round(second, 1)) == (0.3, 0.8)


def test_rows_have_every_policy_budget_and_allocation() -> None:
    profile = Profile(((1.0,),))
    budgets = policies.budgets_of(1000, [200, 320], [Fraction("1/40")])
    assert budgets == {"200": 200, "320": 320, "1/40": 25}
    table = policies.rows(policies.NAMES, budgets, {"uniform": Uniform(), "profile": profile})
    always = {"full", "fastgen"}
    assert set(policies.WITHOUT_BUDGET) | {"full"} == always
    assert len(table) == (len(policies.NAMES) - 1) * 6
    assert set(POLICIES) <= {policy.name for policy in table.values()} | always
    assert [table[f"snapkv {budget} profile"].window for budget in budgets] == [25, 32, 12]
    assert table["snapkv 1/40 profile"].budget == 25
    assert table["knorm 200 profile"].allocation == profile
    held = policies.held_to(budgets, {"full": Full(), "fastgen": FastGen(special=(1,))})
    assert held["fastgen 1/40"] == FastGen(25, special=(1,))
    assert len(held) == 3


def test_what_is_counted_of_the_draws() -> None:
    draws = [(600, True, True), (600, True, False), (900, False, True)]
    records = [
        {"length": length, "found": {"full": full, "row": row}, "kept": {"full": 1.0, "row": 0.1}}
        for length, full, row in draws
    ]
    table, header = needle.table_of(records, "length")
    assert header == ["found", "600", "900", "of full's", "kept"]
    assert table == {"full": ["2/2", "0/1", "2/2", "100.0%"], "row": ["1/2", "1/1", "1/2", "10.0%"]}


def test_scores() -> None:
    assert holds("The KEY is 12345.", ["key", "12345", "54321"]) == 2
    assert f1("the red fox", "A red, quick fox!") == pytest.approx(2 * 2 / (2 + 3))
    assert f1("nothing", "at all") == 0
    assert contained("It was a red fox.", "The red fox")
    assert not contained("It was a redder fox.", "red fox")


def test_an_interval_holds_the_true_difference_and_shrinks_with_the_spread() -> None:
    draw = random.Random(0)
    theirs = [draw.uniform(1, 3) for _ in range(60)]
    noisy = [value * 1.1 + draw.gauss(0, 0.3) for value in theirs]
    low, high = relative_interval(noisy, theirs, seed=0)
    assert low < 0.1 < high
    assert high - low < 0.15
    assert relative_interval([value * 1.1 for value in theirs], theirs, seed=0) == pytest.approx((0.1, 0.1))


def test_plots_are_png_files(tmp_path: Path) -> None:
    map_file, line_file = tmp_path / "new" / "map.png", tmp_path / "lines.png"
    heatmaps(map_file, {"a": [[0, 1]], "b": [[1, 0]]}, title="t", x=("x", [1, 2]), y=("y", ["one"]), value="share")
    lines(
        line_file,
        {"p": {"a": [(1, 2), (0.1, 3)]}, "q": {"a": [(1, 1)]}},
        title="t",
        x="x",
        y="y",
        reference=("full", 2),
        log_shares=True,
    )
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in (map_file, line_file))
