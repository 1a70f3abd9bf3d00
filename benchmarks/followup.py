"""Time to the first token of a follow-up: from the session's stored cache, and the same follow-up computed without it.

    python -m benchmarks.followup [--json FILE] [--prompt-tokens 6000] [--repeats 5] [--archive expected_attention]

Two sessions of one service are asked the same questions, turn by turn and in alternation. Before each follow-up the
stored cache of the second session is dropped, so the service computes its whole prompt.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from app.cli.client import Client
from benchmarks.asking import ask, drop_cache, ingest, resident_bytes
from benchmarks.service import ServiceProcess
from evals.kv_runs import write_json
from samples import HANDBOOK

QUESTIONS = (
    "How often is the gearbox oil changed?",
    "What is the part number of a filter cartridge?",
    "At which bearing temperature does the pump stop?",
    "Who may open a pump or a gearbox?",
    "How long does the shaft take to run out?",
    "Which company made the raking machine?",
    "What must the insulation of a motor be at least?",
)
FIRST_QUESTION = "What must be checked before the pumps are started?"
MAX_TOKENS = 16


def measure(service: ServiceProcess, prompt_tokens: int, repeats: int) -> dict[str, Any]:
    """Both sides, follow-up by follow-up."""
    with Client(service.url, None) as client:
        ingest(client, HANDBOOK, "default")
        top_k = _top_k_for(client, prompt_tokens)
        warm = ask(client, FIRST_QUESTION, max_tokens=MAX_TOKENS, top_k=top_k)
        cold = ask(client, FIRST_QUESTION, max_tokens=MAX_TOKENS, top_k=top_k)
        rows = []
        for question in QUESTIONS[:repeats]:
            options = {"max_tokens": MAX_TOKENS, "top_k": 1}
            with_cache = ask(client, question, warm["session_id"], **options)
            drop_cache(service.data_dir, cold["session_id"])
            without = ask(client, question, cold["session_id"], **options)
            rows.append({"with": _figures(with_cache), "without": _figures(without)})
    return {"session_prompt_tokens": warm["usage"]["prompt_tokens"], "followups": rows}


def _top_k_for(client: Client, prompt_tokens: int) -> int:
    """How many passages make a prompt of about this many tokens."""
    probe = ask(client, FIRST_QUESTION, max_tokens=1, top_k=10)
    per_passage = int(probe["usage"]["prompt_tokens"]) / 10
    return round(prompt_tokens / float(per_passage))


def _figures(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer["answerable"]:
        raise RuntimeError("a follow-up found nothing; the benchmark measures nothing then")
    return {**answer["usage"], **answer["timings"]}


def summarize(result: dict[str, Any]) -> dict[str, Any]:
    """Medians and their ratio."""
    sides = {}
    for side in ("with", "without"):
        rows = [row[side] for row in result["followups"]]
        names = ("prompt_tokens", "cached_tokens", "restore_ms", "prefill_ms", "first_token_ms")
        sides[side] = {name: statistics.median(row[name] for row in rows) for name in names}
    ratio = sides["without"]["first_token_ms"] / sides["with"]["first_token_ms"]
    return {**result, "median": sides, "ratio": round(ratio, 1)}


def main() -> None:
    """Run, print a table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--prompt-tokens", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=5, choices=range(1, len(QUESTIONS) + 1))
    parser.add_argument("--archive", choices=("expected_attention", "full", "working"), default="expected_attention")
    args = parser.parse_args()
    environment = {"SNAPRAG_ARCHIVE": args.archive, "SNAPRAG_MAX_TOP_K": "200"}
    with tempfile.TemporaryDirectory() as folder, ServiceProcess(Path(folder), environment) as service:
        result = summarize(measure(service, args.prompt_tokens, args.repeats))
        result |= {"archive": args.archive, "resident_mb": round(resident_bytes(service.pid) / 2**20)}
    print(
        f"session of {result['session_prompt_tokens']} prompt tokens, archive={args.archive}, medians of {args.repeats}"
    )
    print(f"{'':<14}{'prompt':>8}{'reused':>8}{'restore ms':>12}{'prefill ms':>12}{'first token ms':>16}")
    for side, row in result["median"].items():
        print(
            f"{side + ' cache':<14}{row['prompt_tokens']:>8.0f}{row['cached_tokens']:>8.0f}"
            f"{row['restore_ms']:>12.0f}{row['prefill_ms']:>12.0f}{row['first_token_ms']:>16.0f}"
        )
    print(f"the first token comes {result['ratio']} times sooner")
    write_json(args.json, result)


if __name__ == "__main__":
    main()
