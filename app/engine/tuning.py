"""Measuring the head profiles of a model on sample texts."""

from collections.abc import Sequence

from app.engine.loading import LoadedModel
from kv_compression import Profile, measure_profiles

MARK = "@@text@@"
REQUEST = "\n\nRepeat the previous context exactly."
GO_ON = "\n\nRepeat the part of the previous context exactly, starting with: "


def tune(loaded: LoadedModel, texts: Sequence[str], *, budgets: Sequence[int], tokens: int) -> dict[int, Profile]:
    """Budget -> the profile by these texts, each cut to `tokens`, sent as a user would in the model's chat template."""
    tokenizer = loaded.tokenizer
    message = [{"role": "user", "content": MARK}]
    before, after = str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)).split(MARK)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    prompts = [encode(before + text)[:tokens] for text in texts]
    return measure_profiles(loaded.model, prompts, encode(REQUEST + after), encode(GO_ON), budgets=budgets)
