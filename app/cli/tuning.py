"""`snaprag tune`: the head profile of a model, and the archive that is good enough for it."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from app.engine.archive_tuning import TOLERANCE, Tried, good_enough, try_archives
from app.engine.loading import load_model
from app.engine.policy import save_profile
from app.engine.tuning import as_prompts, tune
from app.errors import TuningError
from app.settings import Settings
from kv_compression import Profile

TOKENS = 4000
LEAST_TOKENS = 512
PART = 8
"""One of so many positions is kept to measure the profile: at most the part that archives keep, or it is too flat."""


def run_tuning(model: str | None, files: Sequence[Path], console: Console) -> None:
    """Measure on the texts of the files, save the profile, and show it. Raises TuningError."""
    settings = Settings(**({} if model is None else {"model": model}))  # type: ignore[arg-type]
    texts = [_read(file) for file in files]
    loaded = load_model(settings)
    tokens = min(TOKENS, loaded.context_tokens // 2, *map(len, as_prompts(loaded, texts, TOKENS)))
    if tokens < LEAST_TOKENS:
        raise TuningError(f"the shortest text has {tokens} tokens, at least {LEAST_TOKENS} are needed")
    budget = tokens // PART
    with console.status(f"reading {len(texts)} texts twice"):
        profile = tune(loaded, texts, budgets=[budget], tokens=tokens)[budget]
    measured = {"texts": [file.name for file in files], "budget": budget, "tokens": tokens, "torch": torch.__version__}
    path = save_profile(settings, loaded.weights, profile, measured)
    _show(profile, console)
    console.print(f"written to {path}; services that start from now on use it", highlight=False)
    with console.status("trying archives"):
        tried = try_archives(loaded, as_prompts(loaded, texts, tokens), profile)
    _show_archives(tried, console)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except ValueError as error:
        raise TuningError(f"{file} is not text in UTF-8") from error


def _show(profile: Profile, console: Console) -> None:
    for layer, shares in enumerate(profile.shares):
        console.print(f"layer {layer:>2}  " + "  ".join(f"{share:5.2f}" for share in shares), highlight=False)


def _show_archives(tried: Sequence[Tried], console: Console) -> None:
    """What each loses, and the settings to take."""
    console.print("archive: kept, format, bytes of the full cache's, loss when the texts are read on", highlight=False)
    for one in tried:
        console.print(f"{one.keep:8.4f}  {one.format:<8}  {one.size:.4f}  {one.loss:+.1%}", highlight=False)
    if (best := good_enough(tried)) is None:
        console.print(f"all lose more than {TOLERANCE:.0%}: SNAPRAG_ARCHIVE=full", highlight=False)
    else:
        setting = f"SNAPRAG_ARCHIVE_KEEP={best.keep} SNAPRAG_ARCHIVE_FORMAT={best.format}"
        console.print(f"SNAPRAG_ARCHIVE=expected_attention {setting}", highlight=False)
