"""What a head profile of other texts costs: likelihood of gold answers within profiles that the study measured.

    python -m evals.profile_use --study FILE --profiles papers:2000:512 zh:2000:512 all:1000:128 --data covidqa.jsonl
        [--documents 4] [the options of evals.multiturn]

FILE is what `python -m evals.profile_study --json FILE` wrote. A profile is SOURCE:TOKENS:BUDGET, the mean of a
source's texts of this length at this budget, or `all`, the mean of the sources. `uniform` and `profile` (the model's
own) come from --allocations. Documents that the study read are left out. The rows are those of evals.multiturn, one of
each for every profile.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from evals import multiturn
from evals.kv_runs import Runner
from evals.profile_compare import mean_of
from evals.profile_texts import Measured, load
from evals.turns import documents
from kv_compression import Profile


def profile(measured: Sequence[Measured], name: str) -> Profile:
    """SOURCE:TOKENS:BUDGET. SystemExit when the study lacks it."""
    source, tokens, budget = name.split(":")
    mean = mean_of(measured, int(tokens), int(budget), None if source == "all" else source)
    if mean is None:
        raise SystemExit(f"the study holds no profile {name}")
    return Profile(tuple(map(tuple, mean.tolist())))


def parser() -> ArgumentParser:
    """That of evals.multiturn, with the study."""
    parser = multiturn.parser()
    parser.description = __doc__
    parser.add_argument("--study", required=True, type=Path, help="file of evals.profile_study")
    parser.add_argument("--profiles", required=True, nargs="+", help="SOURCE:TOKENS:BUDGET")
    parser.set_defaults(
        documents=4,
        allocations=["uniform", "profile"],
        scorers=["expected_attention"],
        budgets=[512],
        storage=["bfloat16"],
        working=[],
    )
    return parser


def main() -> None:
    """Print the table."""
    options = parser().parse_args()
    runner, measured = Runner.load(options.model), load(options.study)
    allocations = runner.allocations(options.allocations)
    table = multiturn.rows(options, {**allocations, **{name: profile(measured, name) for name in options.profiles}})
    used = {one.document for one in measured}
    found = documents(options.data, runner, sys.maxsize, options.questions, tuple(options.tokens))
    unseen = (document for document in found if str(document.name) not in used)
    multiturn.run(runner, islice(unseen, options.documents), table, options)


if __name__ == "__main__":
    main()
