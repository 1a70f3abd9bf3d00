"""A PostgreSQL server of the tests' own, on loopback, and a new database for each test."""

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from benchmarks.service import free_port

_NUMBERS = itertools.count()


def _program(name: str) -> str | None:
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(installed[-1]) if installed else shutil.which(name)


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """Its URL without a database. Skips the test where no server is installed, but never in CI."""
    initdb, postgres = _program("initdb"), _program("postgres")
    if initdb is None or postgres is None:
        if os.environ.get("CI"):
            raise RuntimeError("PostgreSQL is not installed: apt-get install postgresql")
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    data, port = folder / "data", free_port()
    # the server refuses to run as root
    user = "nobody" if os.getuid() == 0 else None
    if user:
        for part in (folder, *folder.parents):
            if part.stat().st_uid == os.getuid() and part.is_relative_to("/tmp") and part != Path("/tmp"):
                part.chmod(0o711)
        shutil.chown(folder, user)
    command = [initdb, "-D", str(data), "-U", "snaprag", "--auth=trust", "-E", "UTF8", "--no-sync", "--locale=C"]
    subprocess.run(command, check=True, user=user, stdout=subprocess.DEVNULL, cwd="/")
    options = ("-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
    server = subprocess.Popen(
        [postgres, "-D", str(data), "-p", str(port), *options], user=user, cwd="/",
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        url = f"postgresql+psycopg://snaprag@127.0.0.1:{port}"
        _wait(f"{url}/postgres")
        yield url
    finally:
        server.terminate()
        server.wait()


def new_database(url: str) -> str:
    """The URL of an empty database on the server."""
    name = f"test{next(_NUMBERS)}"
    engine = create_engine(f"{url}/postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return f"{url}/{name}"


def _wait(url: str) -> None:
    engine = create_engine(url)
    deadline = time.monotonic() + 30
    while True:
        try:
            engine.connect().close()
            break
        except OperationalError:
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.05)
    engine.dispose()
