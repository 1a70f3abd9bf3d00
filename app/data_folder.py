"""Who uses a data folder: several replicas may, and one that starts has to know whether it is alone."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def using(folder: Path) -> Iterator[bool]:
    """Whether no other process is within `using` of the same folder. A process that dies uses nothing any more."""
    with (folder / "in-use.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            alone = False
        fcntl.flock(file, fcntl.LOCK_SH)
        yield alone
