"""Whether a process is alone in a data folder, as other processes see it."""

import subprocess
import sys
from pathlib import Path

from app.data_folder import using

PROGRAM = """
import sys
from pathlib import Path
from app.data_folder import using
with using(Path(sys.argv[1])) as alone:
    print(alone, flush=True)
    sys.stdin.read()
"""


def _other(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_only_the_first_is_alone_and_a_killed_one_is_gone(tmp_path: Path) -> None:
    with _other(tmp_path) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with using(tmp_path) as alone:
            assert not alone
        other.kill()
    with using(tmp_path) as alone:
        assert alone
        with _other(tmp_path) as late:
            late.communicate()
            assert late.returncode == 0
    with using(tmp_path) as alone:
        assert alone
