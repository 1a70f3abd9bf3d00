"""The main job, end to end: a document in, a question, two follow-ups from the stored cache, a crash, and on.

python -m samples.demo
"""

import shutil
import textwrap
from pathlib import Path
from typing import Any

from rich.console import Console

from app.cli.client import Client
from app.cli.ingesting import ingest_paths
from app.cli.talking import cost, show_turn
from app.settings import Settings
from benchmarks.asking import ask, drop_cache
from benchmarks.service import ServiceProcess
from samples import HANDBOOK

FIRST, *FOLLOW_UPS, AFTER_RESTART = (
    "What is the design flow of each main pump?",
    "How many sandbags are there?",
    "How long is the log kept?",
    "What is the telephone number of the control room?",
)
TOP_K = 20
MAX_TOKENS = 32

console = Console(highlight=False)


def main() -> None:
    """Run the demonstration on a data directory of its own, made anew."""
    data_dir = Settings().data_dir.resolve() / "demo"
    shutil.rmtree(data_dir, ignore_errors=True)
    service = ServiceProcess(data_dir)
    _title("Starting the service")
    service.start()
    try:
        with Client(service.url, None) as client:
            session_id = _converse(client, data_dir)
            _title("Killing the service, as a crash would, and starting it again")
            service.kill()
            service.start()
            answer = _turn(client, AFTER_RESTART, session_id)
            if not answer["usage"]["cached_tokens"]:
                raise SystemExit("the session's cache did not survive the restart")
    finally:
        service.stop()


def _converse(client: Client, data_dir: Path) -> str:
    _title("Ingesting the handbook")
    if ingest_paths(client, [HANDBOOK], "default", console):
        raise SystemExit("the handbook could not be ingested")
    answer = _turn(client, FIRST, None)
    _show_passages(answer)
    # the same conversation once more, for the comparison: its stored cache is taken away before every follow-up
    session_id: str = answer["session_id"]
    twin = ask(client, FIRST, top_k=TOP_K, max_tokens=MAX_TOKENS)["session_id"]
    for question in FOLLOW_UPS:
        cached = _turn(client, question, session_id)
        drop_cache(data_dir, twin)
        computed = ask(client, question, twin, max_tokens=MAX_TOKENS)
        console.print(f"the same without the cache: {cost(computed)}", style="dim")
        ratio = computed["timings"]["first_token_ms"] / cached["timings"]["first_token_ms"]
        console.print(f"the first token came {ratio:.1f} times sooner from the cache", style="bold green")
        if not cached["usage"]["cached_tokens"]:
            raise SystemExit("the follow-up did not use the session's cache")
    return session_id


def _turn(client: Client, question: str, session_id: str | None) -> dict[str, Any]:
    _title(question)
    body: dict[str, Any] = {"message": question, "max_tokens": MAX_TOKENS}
    body |= {"session_id": session_id} if session_id else {"top_k": TOP_K}
    return show_turn(client, "/chat", body, console)


def _show_passages(answer: dict[str, Any]) -> None:
    console.print(f"{len(answer['passages'])} passages:", style="dim")
    for passage in answer["passages"]:
        text = textwrap.shorten(passage["text"], 90)
        console.print(f"  page {passage['page']:>2}, score {passage['score']:.3f}: {text}", style="dim", markup=False)


def _title(text: str) -> None:
    console.rule(f"[bold]{text}")


if __name__ == "__main__":
    main()
