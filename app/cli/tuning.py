"""`snaprag tune`: the head profile of a model."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from app.engine.loading import load_model
from app.engine.policy import save_profile
from app.engine.tuning import tune
from app.errors import TuningError
from app.settings import Settings
from kv_compression import Profile

BUDGET = 512
TOKENS = 4000


def run_tuning(model: str | None, files: Sequence[Path], console: Console) -> None:
    """Measure on the texts of the files, save the profile, and show it. Raises TuningError."""
    settings = Settings(**({} if model is None else {"model": model}))  # type: ignore[arg-type]
    texts = [_read(file) for file in files]
    loaded = load_model(settings)
    with console.status(f"reading {len(texts)} texts twice"):
        try:
            profile = tune(loaded, texts, budgets=[BUDGET], tokens=min(TOKENS, loaded.context_tokens // 2))[BUDGET]
        except ValueError as error:
            raise TuningError(str(error)) from error
    measured = {"texts": [file.name for file in files], "budget": BUDGET, "tokens": TOKENS, "torch": torch.__version__}
    path = save_profile(settings, loaded.weights, profile, measured)
    _show(profile, console)
    console.print(f"written to {path}; services that start from now on use it", highlight=False)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except ValueError as error:
        raise TuningError(f"{file} is not text in UTF-8") from error


def _show(profile: Profile, console: Console) -> None:
    for layer, shares in enumerate(profile.shares):
        console.print(f"layer {layer:>2}  " + "  ".join(f"{share:5.2f}" for share in shares), highlight=False)
