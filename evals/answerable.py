"""When the service stays silent: `python -m evals.answerable --data FILE... --json FILE`.

The files are CLAP-NQ's: lines of a question (`input`), its passage, and an answer (`output`) that is empty when the
passage does not hold one. All passages lie in one collection; a question counts as answerable by the best evidence that
the retriever finds for it there. Prints AUROC and the operating point of the service.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evals.retrieval.bench import TENANT, Bench, open_bench
from retriever.search import MIN_EVIDENCE, best_evidence

COLLECTION = "clapnq"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    lines = [json.loads(line) for path in arguments.data for line in path.read_text("utf-8").splitlines()]
    answerable = np.array([any(answer["answer"] for answer in line["output"]) for line in lines])
    if answerable.all() or not answerable.any():
        parser.error("name a file of answerable questions and one of unanswerable ones")
    texts = {f"{line['id']}.txt": line["passages"][0]["text"] for line in lines}
    with open_bench() as bench:
        bench.ingest(COLLECTION, texts)
        scores = _scores(bench, [line["input"] for line in lines])
    report = {name: _row(values, answerable, bound) for name, (values, bound) in scores.items()}
    print(f"{'score':12} {'AUROC':>6} {'bound':>6} {'answerable, kept':>17} {'unanswerable, refused':>22}")
    for name, row in report.items():
        print(f"{name:12} {row['auroc']:6.3f} {row['bound']:6.2f} {row['kept']:17.3f} {row['refused']:22.3f}")
    arguments.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


def _scores(bench: Bench, questions: Iterable[str]) -> dict[str, tuple[NDArray[np.float64], float | None]]:
    """By what could be decided, with the service's bound where that is what it goes by."""
    found = [bench.retriever.candidates(TENANT, COLLECTION, question) for question in questions]
    cosines = [max((hit.similarity for hit in hits), default=0.0) for hits in found]
    return {
        "evidence": (np.array([best_evidence(hits) for hits in found]), MIN_EVIDENCE),
        "cosine": (np.array(cosines), None),
    }


def _row(scores: NDArray[np.float64], answerable: NDArray[np.bool_], bound: float | None) -> dict[str, float]:
    held, lacking = scores[answerable], scores[~answerable]
    bound = best_bound(held, lacking) if bound is None else bound
    row = {"auroc": auroc(held, lacking), "bound": bound}
    row |= {"kept": float((held >= bound).mean()), "refused": float((lacking < bound).mean())}
    return {name: round(value, 3) for name, value in row.items()}


def auroc(held: NDArray[np.float64], lacking: NDArray[np.float64]) -> float:
    """How often an answerable question scores higher than an unanswerable one; a tie is half."""
    pairs = held[:, None] - lacking[None]
    return float((pairs > 0).mean() + (pairs == 0).mean() / 2)


def best_bound(held: NDArray[np.float64], lacking: NDArray[np.float64]) -> float:
    """The score from which on to answer, so that both kinds are decided best on average (Youden, 1950)."""
    return max((float(score) for score in held), key=lambda bound: np.mean(held >= bound) + np.mean(lacking < bound))


if __name__ == "__main__":
    main()
