"""The process that reads files: `python -m retriever.extract.worker BYTES SECONDS`, started by `apart.py`.

A line of JSON comes in for each file, `{"path": …, "filename": …}`; lines of JSON go out: `{"done": share}` after
pages, and at the end one of `{"extracted": {…}}`, `{"refused": message}`, `{"memory": message}` and
`{"broken": traceback}`. It has at most BYTES of memory, and SECONDS of the processor for each file, so that it ends
even when nobody is left to end it.
"""

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retriever.errors import RetrieverError
from retriever.extract import extract

_TOO_LARGE = "Reading the document takes more memory than a document may. Split it."
Send = Callable[[dict[str, Any]], None]


def answer(path: Path, filename: str, send: Send) -> dict[str, Any]:
    """The last line for a file."""
    try:
        return {"extracted": asdict(extract(path, filename, lambda done: send({"done": done})))}
    except RetrieverError as error:
        return {"memory": _TOO_LARGE} if _lacks_memory(error.__cause__) else {"refused": str(error)}
    except MemoryError:
        return {"memory": _TOO_LARGE}
    except Exception:  # a file that breaks its reader must not end the process; the service's log says how
        return {"broken": traceback.format_exc()}


def _lacks_memory(cause: BaseException | None) -> bool:
    """lxml calls a lack of memory a fault of the file, sometimes without a word of what it is."""
    return "memory" in str(cause).casefold() or str(cause).startswith("unknown error")


def _main(memory: int, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # what a library prints is no answer

        def send(line: dict[str, Any]) -> None:
            out.write(json.dumps(line) + "\n")
            out.flush()

        for line in sys.stdin:
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit = int(used.ru_utime + used.ru_stime) + seconds
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
            request = json.loads(line)
            send(answer(Path(request["path"]), request["filename"], send))


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
