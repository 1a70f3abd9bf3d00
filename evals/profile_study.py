"""Head profiles of several texts, as `snaprag tune` measures them, and how much they agree.

    python -m evals.profile_study [--sources handbook=samples/handbook.md papers=covidqa.jsonl zh=xquad.zh.jsonl]
        [--texts 4] [--lengths 1000 2000 4000] [--budgets 128 512 2048] [--json FILE] [--plot FILE.png] [--seed N]

A source is a file, a folder of files, or JSON lines: {"document_id", "text"}, or {"context"} (paragraphs, joined). Of
every source so many texts are drawn; a text is read once a length, for all budgets below it. Two figures compare
shares: their correlation, and their distance, half the sum of the differences of what each head gets of everything
(total variation: 0 the same, 1 nothing in common). The tables, correlation / distance: by the number of texts that make
the profile, against the mean of others of the same source; by source, at every length; by length and budget, the
mean of the sources, from the documents that were read at every length. What a FILE of before holds is not measured
again, and is in the tables.
"""

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import numpy as np

from app.engine.loading import load_model
from app.settings import DEFAULT_MODEL, Settings
from evals.kv_runs import MODEL_HELP, as_json, print_table, write_json
from evals.plots import heatmaps, lines
from evals.profile_compare import by_count, matrix, mean_of, of_source, read_at_all
from evals.profile_texts import Measured, draw, load, measure


def tables(measured: Sequence[Measured], options: Namespace) -> None:
    """Print them: correlation / distance."""
    sources, budget = sorted({one.source for one in measured}), options.budget
    for tokens in options.lengths:
        counted = {source: by_count(of_source(measured, tokens, budget, source), options.seed) for source in sources}
        most = max(counted.values(), key=len)
        if most:
            rows = {
                name: [f"{pair[0]:.3f} / {pair[1]:.3f}" for pair in found.values()] for name, found in counted.items()
            }
            _print(f"{tokens}:{budget}, texts", rows, list(map(str, most)))
        by_source = matrix({source: mean_of(measured, tokens, budget, source) for source in sources})
        _print(f"{tokens}:{budget}, source", by_source, list(by_source))
    paired, settings = read_at_all(measured, options.lengths), list(product(options.lengths, options.budgets))
    by_setting = matrix({f"{tokens}:{budget}": mean_of(paired, tokens, budget) for tokens, budget in settings})
    _print("tokens:budget", by_setting, list(by_setting))


def _print(title: str, rows: Mapping[str, Sequence[str]], columns: Sequence[str]) -> None:
    print()
    print_table(rows, [title, *columns])


def plot(path: Path, measured: Sequence[Measured], options: Namespace) -> None:
    """The shares by source, layers x heads; and beside it, distances by number of texts, in a file of its own."""
    longest, budget = max(options.lengths), options.budget
    means = {source: mean_of(measured, longest, budget, source) for source in options.sources}
    panels = {source: mean.tolist() for source, mean in means.items() if mean is not None}
    layers, heads = np.array(next(iter(panels.values()))).shape
    heatmaps(
        path,
        panels,
        title=f"Shares of a budget of {budget}, texts of {longest} tokens",
        x=("KV head", range(heads)),
        y=("layer", range(layers)),
        value="share, relative to the mean head",
    )
    curves = {
        source: [(count, tv) for count, (_, tv) in by_count(texts, options.seed).items()]
        for source in options.sources
        if len(texts := of_source(measured, min(options.lengths), budget, source)) > 1
    }
    lines(
        path.with_stem(f"{path.stem}-texts"),
        {f"{min(options.lengths)} tokens, budget {budget}": curves},
        title="How far a profile is from one by other texts of its source",
        x="texts",
        y="distance (total variation)",
    )


def source(text: str) -> tuple[str, Path]:
    """NAME=PATH."""
    name, _, path = text.partition("=")
    return name, Path(path)


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help=MODEL_HELP)
    parser.add_argument("--sources", nargs="+", type=source, default=[("handbook", Path("samples/handbook.md"))])
    parser.add_argument("--texts", type=int, default=4, help="of every source, as far as it has so many")
    parser.add_argument("--least", type=int, default=4000, help="tokens that a document must have to be drawn")
    parser.add_argument("--lengths", nargs="+", type=int, default=[1000, 2000, 4000], help="its first tokens are read")
    parser.add_argument("--budgets", nargs="+", type=int, default=[128, 512, 2048], help="positions kept per KV head")
    parser.add_argument("--budget", type=int, default=512, help="where texts and sources are compared")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--plot", type=Path, help="PNG file for the plot")
    return parser


def main() -> None:
    """Print the tables."""
    options = parser().parse_args()
    options.sources = dict(options.sources)
    loaded = load_model(Settings(model=options.model))
    texts = draw(loaded, options.sources, options.texts, options.least, options.seed)
    known = {(one.source, one.document, one.tokens): one for one in load(options.json)}
    for tokens, text in product(options.lengths, texts):
        key = (text.source, text.document, tokens)
        shares = known[key].shares if key in known else {}
        missing = [budget for budget in options.budgets if budget < tokens and budget not in shares]
        if missing:
            new = measure(loaded, text, tokens, missing)
            known[key] = replace(new, shares={**shares, **new.shares})
            write_json(options.json, {"options": as_json(options), "profiles": list(map(asdict, known.values()))})
            print(f"{text.source} {text.document}: {tokens} tokens are done", file=sys.stderr)
    measured = list(known.values())
    tables(measured, options)
    if options.plot:
        plot(options.plot, measured, options)


if __name__ == "__main__":
    main()
