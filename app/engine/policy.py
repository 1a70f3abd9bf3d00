"""From settings to the policy of the working cache, and the head profiles that it may use.

A profile is a file named by the digest of the weights: in `profiles` of the data directory, where `snaprag tune`
writes it, or beside this module, for the default model.
"""

import json
from pathlib import Path
from typing import Any

import structlog

from app.settings import Settings
from kv_compression import (
    Allocation,
    Blend,
    ExpectedAttention,
    Full,
    Policy,
    Profile,
    SnapKV,
    StreamingLLM,
    Uniform,
)

SHIPPED = Path(__file__).with_name("profiles")

log = structlog.get_logger()


def allocation_of(settings: Settings, profile: Profile | None) -> Allocation:
    """How heads share a budget. Without a profile, every head gets the same."""
    return Uniform() if profile is None or settings.allocation == "uniform" else profile


def working_policy(settings: Settings, allocation: Allocation) -> Policy:
    """What chooses the working cache."""
    snapkv = SnapKV(settings.budget, settings.window, settings.kernel, settings.pooling, allocation)
    match settings.policy:
        case "full":
            return Full()
        case "snapkv":
            return snapkv
        case "blend":
            return Blend(snapkv, ExpectedAttention(settings.budget))
        case "streaming_llm":
            return StreamingLLM(settings.budget, allocation=allocation)


def find_profile(settings: Settings, weights: str) -> Profile | None:
    """The head profile of the model with these weights; None, and a line in the log, when there is none."""
    for folder in (settings.profiles_dir, SHIPPED):
        path = _path(folder, weights)
        if path.is_file():
            shares = json.loads(path.read_text(encoding="utf-8"))["shares"]
            return Profile(tuple(tuple(map(float, layer)) for layer in shares))
    log.warning("no_head_profile", advice="'snaprag tune' measures one; until then every head keeps as many entries")
    return None


def save_profile(settings: Settings, weights: str, profile: Profile, measured: dict[str, Any]) -> Path:
    """Write it for the model with these weights; `measured` says how it was made. Returns the file."""
    path = _path(settings.profiles_dir, weights)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"model": settings.model, "weights": weights, "measured": measured, "shares": profile.shares}
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return path


def _path(folder: Path, weights: str) -> Path:
    return folder / f"{weights[:32]}.json"
