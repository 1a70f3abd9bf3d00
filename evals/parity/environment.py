"""kvpress in a virtual environment of its own: it needs an older transformers than this project."""

import subprocess
import venv
from pathlib import Path

import torch

KVPRESS = "0.5.5"
ORACLE = Path(__file__).with_name("oracle.py")


def ensure(folder: Path) -> Path:
    """The environment's Python; the environment is made when it is missing or half made."""
    python, complete = folder / "bin" / "python", folder / ".complete"
    if not complete.exists():
        venv.create(folder, with_pip=True, clear=True)
        for package in (f"torch=={torch.__version__.split('+')[0]}", f"kvpress=={KVPRESS}"):
            subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
        complete.touch()
    return python


def run_oracle(python: Path, case: Path, result: Path) -> None:
    """Run kvpress on a case. CalledProcessError when it fails."""
    subprocess.run([python, "-I", ORACLE, case, result], check=True)
