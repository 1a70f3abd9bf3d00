"""Reading files in a process apart, so that a file that crashes, hangs or fills its reader takes down nothing else."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import structlog

from retriever.errors import InvalidDocumentError
from retriever.extract.outline import MAX_TEXT_CHARS, too_long
from retriever.model import Extracted, Heading

log = structlog.get_logger()

MEMORY_BYTES = 3 * 2**30  # of addresses, of which the libraries alone take some 500 MiB
TIME_S = 600
POLL_S = 0.25
_MAX_ANSWER_BYTES = 8 * MAX_TEXT_CHARS
_LARGE_BYTES = 8 * 2**20  # what reading such a file took is given back, and does not count for the next
_BROKEN = "The document could not be read; it may be damaged. The service's log says more."

Report = Callable[[float], None]


class ApartReader:
    """One process that reads one file after another. It is started when needed, and ended after a file that broke it
    or that was large. Not thread-safe.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, path: Path, filename: str, report: Report) -> Extracted:
        """The text of a file. InvalidDocumentError says why there is none.

        `report` is called with the share that is done every quarter of a second; what it raises ends the process.
        """
        try:
            answer = self._ask(path, filename, report)
        except BaseException:
            self.close()
            raise
        if "memory" in answer or "broken" in answer or path.stat().st_size > _LARGE_BYTES:
            self.close()
        if message := answer.get("refused") or answer.get("memory"):
            raise InvalidDocumentError(message)
        if "broken" in answer:
            log.error("extract_failed", filename=filename, traceback=answer["broken"])
            raise InvalidDocumentError(_BROKEN)
        return _extracted(answer["extracted"])

    def close(self) -> None:
        """End the process; the next file starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, path: Path, filename: str, report: Report) -> dict[str, Any]:
        process = self._process = self._process or _started()
        assert process.stdin is not None
        request = json.dumps({"path": str(path.absolute()), "filename": filename})
        try:
            process.stdin.write(request.encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:  # it ended after its last file
            self.close()
            return self._ask(path, filename, report)
        done, reported = 0.0, time.monotonic()
        for line in _lines(process, reported + TIME_S):
            answer: dict[str, Any] = json.loads(line) if line else {}
            done = answer.pop("done", done)
            if answer:
                return answer
            if time.monotonic() - reported >= POLL_S:
                report(done)
                reported = time.monotonic()
        log.error("extract_crashed", filename=filename, code=process.wait())
        raise InvalidDocumentError(_BROKEN)


def _started() -> subprocess.Popen[bytes]:
    """A process that finds the same packages, and knows none of the service's secrets."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SNAPRAG_")}
    environment |= {"PYTHONPATH": os.pathsep.join(folder or os.getcwd() for folder in sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "retriever.extract.worker", str(MEMORY_BYTES), str(TIME_S)]
    pipe = subprocess.PIPE
    # in a session of its own: Ctrl-C is for the service, which then ends it
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True)


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[bytes]:
    """Lines as they come, and an empty one whenever none comes for `POLL_S`; ends with the process."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN | select.POLLHUP)
    held = bytearray()
    while time.monotonic() < deadline:
        if not poll.poll(POLL_S * 1000):
            yield b""
            continue
        piece = os.read(process.stdout.fileno(), 2**20)
        if not piece:
            return
        held += piece
        if len(held) > _MAX_ANSWER_BYTES:
            raise too_long()
        if b"\n" in piece:
            *whole, rest = bytes(held).split(b"\n")
            held = bytearray(rest)
            yield from whole
    raise InvalidDocumentError(f"Reading the document took more than {TIME_S // 60} minutes. Split it.")


def _extracted(values: dict[str, Any]) -> Extracted:
    pages = [(start, end) for start, end in values["pages"]]
    headings = [Heading(**heading) for heading in values["headings"]]
    return Extracted(values["text"], pages, values["title"], values["warnings"], headings)
