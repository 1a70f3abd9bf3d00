"""Resident memory of the service: idle with both models, and again after many turns.

    python -m benchmarks.memory [--json FILE] [--turns 50]

The limit that it is compared with is the project's own: under 1.5 GB idle, and back to within 10% of it.
"""

import argparse
import tempfile
import time
from pathlib import Path

from app.cli.client import Client
from benchmarks.asking import ask, ingest, resident_bytes
from benchmarks.followup import FIRST_QUESTION, QUESTIONS
from benchmarks.service import ServiceProcess
from evals.kv_runs import write_json
from samples import HANDBOOK

TURNS_PER_SESSION = 5
SETTLE_S = 3.0


def measure(service: ServiceProcess, turns: int) -> dict[str, int]:
    """Bytes: idle (models loaded, one document ingested and one question answered), highest, and at the end."""
    with Client(service.url, None) as client:
        ingest(client, HANDBOOK, "default")
        ask(client, FIRST_QUESTION, max_tokens=8, top_k=1)
        time.sleep(SETTLE_S)
        idle = highest = resident_bytes(service.pid)
        session_id = None
        for turn in range(turns):
            session_id = None if turn % TURNS_PER_SESSION == 0 else session_id
            top_k = 20 if session_id is None else 4
            question = QUESTIONS[turn % len(QUESTIONS)]
            session_id = ask(client, question, session_id, max_tokens=16, top_k=top_k)["session_id"]
            highest = max(highest, resident_bytes(service.pid))
        time.sleep(SETTLE_S)
        return {"idle": idle, "highest": highest, "after": resident_bytes(service.pid)}


def main() -> None:
    """Run, print, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--turns", type=int, default=50)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ServiceProcess(Path(folder)) as service:
        result = measure(service, args.turns)
    for name, size in result.items():
        print(f"{name:<8}{size / 1e9:>7.2f} GB")
    print(f"after {args.turns} turns: {result['after'] / result['idle']:.2f} times the idle memory")
    write_json(args.json, result)


if __name__ == "__main__":
    main()
