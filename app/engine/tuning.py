"""Measuring the head profiles of a model on sample texts."""

from collections.abc import Sequence

from app.engine.loading import LoadedModel
from kv_compression import Profile, measure_profiles

MARK = "@@text@@"
REQUEST = "\n\nRepeat the previous context exactly."
GO_ON = "\n\nRepeat the part of the previous context exactly, starting with: "


def tune(loaded: LoadedModel, texts: Sequence[str], *, budgets: Sequence[int], tokens: int) -> dict[int, Profile]:
    """Budget -> the profile by these texts, each cut to `tokens`."""
    _, after = _around(loaded)
    asked, go_on = _encode(loaded, REQUEST + after), _encode(loaded, GO_ON)
    return measure_profiles(loaded.model, as_prompts(loaded, texts, tokens), asked, go_on, budgets=budgets)


def as_prompts(loaded: LoadedModel, texts: Sequence[str], tokens: int) -> list[list[int]]:
    """The token ids of each text as a user sends it, in the model's chat template, the first `tokens` of them."""
    before, _ = _around(loaded)
    return [_encode(loaded, before + text)[:tokens] for text in texts]


def _around(loaded: LoadedModel) -> list[str]:
    """What the chat template puts before and after a message."""
    message = [{"role": "user", "content": MARK}]
    return str(loaded.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)).split(MARK)


def _encode(loaded: LoadedModel, text: str) -> list[int]:
    return list(loaded.tokenizer.encode(text, add_special_tokens=False))
