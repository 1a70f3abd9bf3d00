"""The policies that an evaluation compares, by name, with every budget and allocation."""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from evals.kv_runs import WINDOW
from kv_compression import (
    POLICIES,
    Allocation,
    Blend,
    CriticalKV,
    ExpectedAttention,
    FastGen,
    Full,
    LayerEntries,
    LayerObservation,
    Policy,
    SnapKV,
    Uniform,
)


@dataclass(frozen=True)
class RandomChoice(Policy):
    """What a choice without any sense keeps: the floor that a score has to beat."""

    name: ClassVar[str] = "random"
    budget: int
    allocation: Allocation = Uniform()

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """By torch's global generator."""
        return [torch.rand(count).to(entries.positions.device) for count in entries.counts]


@dataclass(frozen=True)
class SnapKVWithSinks(SnapKV):
    """SnapKV that keeps the first four entries, too: a head with a small share of the budget loses them otherwise."""

    sinks: int = 4


def snapkv(budget: int, allocation: Allocation, made: type[SnapKV] = SnapKV) -> SnapKV:
    """Its window is smaller for small budgets, of which it would take too much: see docs/experiments.md."""
    window = min(WINDOW, max(budget // 8, 16), budget // 2)
    return made(budget, window=window, allocation=allocation)


def criticalkv(budget: int, allocation: Allocation) -> CriticalKV:
    """On SnapKV's scores."""
    return CriticalKV(snapkv(budget, allocation))


def blend(budget: int, allocation: Allocation) -> Blend:
    """Of SnapKV and ExpectedAttention, half each."""
    return Blend(snapkv(budget, allocation), ExpectedAttention(budget))


def critical_expected(budget: int, allocation: Allocation) -> CriticalKV:
    """On ExpectedAttention's scores, so without a question."""
    return CriticalKV(ExpectedAttention(budget, allocation=allocation))


# those that take more than a budget and an allocation, or are no part of the library
MADE_BY: dict[str, Callable[[int, Allocation], Policy]] = {
    "snapkv": snapkv,
    "snapkv_sinks": partial(snapkv, made=SnapKVWithSinks),
    "criticalkv": criticalkv,
    "blend": blend,
    "critical_expected": critical_expected,
    "random": RandomChoice,
}
WITHOUT_BUDGET: dict[str, Callable[[PreTrainedTokenizerBase], Policy]] = {"fastgen": FastGen.for_tokenizer}
FORMATS = ("bfloat16", "fp8", "int8", "int4", "int4/32")  # of the store, some with the size of groups
NAMES = [*(name for name in POLICIES if name not in ("full", *MADE_BY)), *MADE_BY]


def add_options(parser: ArgumentParser, names: Sequence[str], fractions: Sequence[str]) -> None:
    """The options of evaluations that compare any policies, with their defaults."""
    parser.add_argument("--policies", nargs="+", choices=NAMES, default=list(names))
    parser.add_argument(
        "--fractions",
        nargs="*",
        type=Fraction,
        default=list(map(Fraction, fractions)),
        help="budgets as fractions kept, like 1/30",
    )


def make(name: str, budget: int, allocation: Allocation) -> Policy:
    """The policy of one of `NAMES` that has a budget."""
    if name in MADE_BY:
        return MADE_BY[name](budget, allocation)
    return POLICIES[name](budget=budget, allocation=allocation)  # type: ignore[call-arg]


def without_budget(names: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, Policy]:
    """Row name -> policy, of those that have no budget; the full cache first."""
    made: dict[str, Policy] = {name: WITHOUT_BUDGET[name](tokenizer) for name in names if name in WITHOUT_BUDGET}
    return {"full": Full(), **made}


def held_to(budgets: Mapping[str, int], always: Mapping[str, Policy]) -> dict[str, Policy]:
    """Row name -> policy: those of `without_budget` that can be held to a budget, at every one."""
    return {
        f"{name} {label}": replace(policy, budget=budget)
        for (name, policy), (label, budget) in product(always.items(), budgets.items())
        if isinstance(policy, FastGen)
    }


def budgets_of(positions: int, budgets: Sequence[int], fractions: Sequence[Fraction]) -> dict[str, int]:
    """Name -> positions kept per head, of a prompt of so many: budgets, and fractions kept."""
    named = {str(budget): budget for budget in budgets}
    return named | {str(fraction): int(positions * fraction) for fraction in fractions}


def rows(names: Sequence[str], budgets: Mapping[str, int], allocations: Mapping[str, Allocation]) -> dict[str, Policy]:
    """Row name -> policy, of those that have a budget."""
    names = [name for name in names if name not in WITHOUT_BUDGET]
    table: dict[str, Policy] = {}
    for name, (label, budget), (how, allocation) in product(names, budgets.items(), allocations.items()):
        table[f"{name} {label} {how}"] = make(name, budget, allocation)
    return table
