"""`snaprag ingest`: files and folders, with a progress bar over upload and processing."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from app.cli.client import Client, ServiceError
from retriever import SUFFIXES

POLL_S = 0.3


def ingest_paths(client: Client, paths: Sequence[Path], collection: str, console: Console) -> int:
    """Upload and wait; prints a line per file. Returns how many failed."""
    files = list(_files(paths))
    if not files:
        console.print("nothing to ingest: no file of a known type in there", style="yellow")
        return 1
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        tasks = {file: progress.add_task(file.name, total=1.0) for file in files}
        return sum(not _ingest(client, file, collection, progress, tasks[file]) for file in files)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Files as named; of folders, those of a supported type, without hidden ones."""
    for path in paths:
        if path.is_file():
            yield path
            continue
        for folder, subfolders, names in os.walk(path):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            for name in sorted(names):
                if not name.startswith(".") and Path(name).suffix.casefold() in SUFFIXES:
                    yield Path(folder, name)


def _ingest(client: Client, file: Path, collection: str, progress: Progress, task: TaskID) -> bool:
    try:
        document = client.upload(file, collection)
        while document["status"] in ("queued", "processing"):
            time.sleep(POLL_S)
            document = client.get(f"/documents/{document['document_id']}")
            progress.update(task, completed=document["progress"])
    except ServiceError as error:
        return _report(progress, file, f"failed: {error}", "red")
    progress.update(task, completed=1.0)
    if document["status"] == "failed":
        return _report(progress, file, f"failed: {document['error']}", "red")
    for warning in document["warnings"]:
        _report(progress, file, warning, "yellow")
    _report(progress, file, f"{document['pages']} pages, {document['passages']} passages", "green")
    return True


def _report(progress: Progress, file: Path, line: str, style: str) -> bool:
    progress.console.print(f"{file.name}: {line}", style=style, markup=False, highlight=False)
    return False
