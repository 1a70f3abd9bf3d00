"""Do the policies choose the same entries as kvpress's presses, on the same tokens with the same parameters?

    python -m evals.parity [--model DIR] [--tokens 1200] [--budget 200] [--json FILE]

kvpress is an oracle in a virtual environment of its own, which is made when it is missing (kvpress 0.5.5 and the torch
of this environment; a few minutes). Both sides compute in float32. An entry that only one side keeps is a tie when its
score is within 0.1% of that of the one it took the place of. In the rows named `control` the parameters differ on
purpose. The exit status is 1 when choices differ by more than ties, a score by more than 0.1% or is NaN, or when a
control agrees.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from app.engine.loading import resolve_model
from app.settings import DEFAULT_MODEL, Settings
from evals.kv_runs import print_table, write_json
from evals.parity.cases import Case, cases
from evals.parity.compare import Agreement, Choice, agreement
from evals.parity.environment import ensure, run_oracle
from evals.parity.ours import choices
from evals.parity.peers import Peer, peers
from kv_compression import attach

Results = dict[str, dict[str, Agreement]]
"""By row and the model's name."""


def oracle(case: Case, rows: Mapping[str, Peer], budget: int, python: Path, folder: Path) -> dict[str, Choice]:
    """What kvpress chooses."""
    presses = {name: row.press for name, row in rows.items()}
    (folder / "case.json").write_text(json.dumps({**dataclasses.asdict(case), "budget": budget, "presses": presses}))
    run_oracle(python, folder / "case.json", folder / "result.npz")
    with np.load(folder / "result.npz") as result:
        return {name: Choice(result[f"{name}/scores"], result[f"{name}/kept"]) for name in rows}


def compare(case: Case, rows: Mapping[str, Peer], theirs: Mapping[str, Choice]) -> dict[str, Agreement]:
    """For every row."""
    model = AutoModelForCausalLM.from_pretrained(case.model, dtype=torch.float32).eval()
    attach(model)
    ours = choices(model, case, {name: row.policy for name, row in rows.items()})
    found = {}
    for name, row in rows.items():
        competing = row.competing(*ours[name].kept.shape[:2])
        found[name] = agreement(ours[name], theirs[name], competing=competing, same_scale=row.same_scale)
    return found


def show(results: Results, rows: Mapping[str, Peer]) -> None:
    """Print the shares of entries, and the differences of scores."""
    models = list(next(iter(results.values())))
    shares = {row: [_share(of_model[model]) for model in models] for row, of_model in results.items()}
    print_table(shares, ["kept by both", *models])
    scores = {
        row: [f"{found.score:.0e}" if rows[row].same_scale else "-" for found in of_model.values()]
        for row, of_model in results.items()
    }
    print()
    print_table(scores, ["difference of scores", *models])


def _share(found: Agreement) -> str:
    exact = found.agrees and found.shared == found.kept
    return f"{found.share:.3%}" + ("" if exact else ", ties" if found.agrees else ", DIFFERS")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=Path("results/kvpress-venv"), help="folder of kvpress's")
    parser.add_argument("--model", help="a model's local folder; the default model when none is named")
    parser.add_argument(
        "--text", type=Path, default=Path("samples/handbook.md"), help="what it reads, from a random place"
    )
    parser.add_argument("--tokens", type=int, default=1200, help="of the text")
    parser.add_argument("--budget", type=int, default=200, help="entries kept per KV head")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()

    disable_progress_bar()
    python, rows = ensure(options.environment), peers(options.budget)
    model = Path(resolve_model(Settings(model=options.model or DEFAULT_MODEL)))
    results: Results = {name: {} for name in rows}
    with tempfile.TemporaryDirectory() as name:
        folder, text = Path(name), options.text.read_text(encoding="utf-8")
        for case in cases(model, text, options.tokens, options.seed, folder):
            for row, found in compare(case, rows, oracle(case, rows, options.budget, python, folder)).items():
                results[row][case.name] = found
    show(results, rows)
    content = {row: {model: dataclasses.asdict(found) for model, found in of.items()} for row, of in results.items()}
    write_json(options.json, content)
    wrong = [row for row, of in results.items() if any(found.agrees == rows[row].control for found in of.values())]
    if wrong:
        sys.exit(f"Not as expected: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
