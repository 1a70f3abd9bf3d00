"""Models: which can be attached, what their layers are, and how tokens run through them."""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, get_layer_types_and_kwargs

from kv_compression.adapter.attention import NAME, recording
from kv_compression.adapter.generation import prepare_generation
from kv_compression.adapter.layers import EntryBatch, EntryCache, handed_over
from kv_compression.errors import UnsupportedModelError
from kv_compression.recorders import QueryRecorder

_CHECKED = (0, 1, 2)  # token ids that every model has
_TOLERANCE = 0.1  # of the largest logit: what 16 bits may differ by in two ways of computing the same


def attach(model: PreTrainedModel) -> None:
    """Route the model's attention through this library, and run three tokens to see that nothing changes by that.

    Raises UnsupportedModelError, and then leaves the model as it was.
    """
    _check_class(model)
    before = model.config._attn_implementation
    expected = _own_logits(model)
    model.set_attn_implementation(NAME)
    try:
        _check_run(model, expected)
    except Exception:
        model.set_attn_implementation(before)
        raise
    prepare_generation(model)


def sliding_windows(config: PretrainedConfig) -> list[int | None]:
    """The sliding window of every layer in tokens, None where attention is full. Raises UnsupportedModelError."""
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(config.model_type, "it is an encoder-decoder")
    text = config.get_text_config(decoder=True)
    if getattr(text, "kv_lora_rank", None) is not None:
        raise UnsupportedModelError(text.model_type, "it caches latent attention states (MLA), not keys and values")
    kinds, arguments = get_layer_types_and_kwargs(text)
    for index, kind in enumerate(kinds):
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(text.model_type, f"layer {index} is of the type {kind!r}")
    return [layer.get("sliding_window") for layer in arguments]


def widest_entry(config: PretrainedConfig) -> int:
    """No layer has more numbers than this in a token's keys, or in its values, all heads together."""
    text = config.get_text_config(decoder=True)
    heads = int(text.num_attention_heads)
    return heads * max(int(getattr(text, "head_dim", None) or 0), int(text.hidden_size) // heads)


@torch.no_grad()
def forward(model: PreTrainedModel, cache: EntryCache, token_ids: Sequence[int], *, keep: int = 1) -> Tensor:
    """Append tokens to the cache, at their true positions; the logits after the last `keep` [keep, vocab], float32.

    ValueError for a model that was not attached.
    """
    return _run(model, cache, token_ids, _positions(cache, token_ids), keep)[-keep:]


@torch.no_grad()
def forward_together(model: PreTrainedModel, caches: Sequence[EntryCache], pieces: Sequence[Sequence[int]]) -> Tensor:
    """Append to every cache its piece of tokens; the logits after each piece [caches, vocab], float32.

    All pieces run as one row of tokens, with no padding. Every one attends to its own cache alone.
    """
    positions = [position for cache, piece in zip(caches, pieces, strict=True) for position in _positions(cache, piece)]
    lengths = [len(piece) for piece in pieces]
    last = torch.tensor(lengths, device=model.device).cumsum(0) - 1
    token_ids = [token_id for piece in pieces for token_id in piece]
    return _run(model, EntryBatch(caches, lengths), token_ids, positions, last)


def _positions(cache: EntryCache, token_ids: Sequence[int]) -> range:
    start = cache.layers[0].length
    return range(start, start + len(token_ids))


def _run(
    model: PreTrainedModel, cache: Cache, token_ids: Sequence[int], positions: Sequence[int], keep: int | Tensor
) -> Tensor:
    if model.config._attn_implementation != NAME:
        raise ValueError("attach(model) comes first")
    handed_over.set(None)  # what a forward that failed may have left
    ids, at = torch.tensor([token_ids, positions], device=model.device)[:, None]
    output = model(input_ids=ids, position_ids=at, cache=cache, use_cache=True, logits_to_keep=keep)
    logits: Tensor = output.logits[0].float()
    return logits


def _check_class(model: PreTrainedModel) -> None:
    kind = model.config.model_type
    sliding_windows(model.config)
    if not model._can_set_attn_implementation():
        raise UnsupportedModelError(kind, "it does not use transformers' attention interface")
    accepted = inspect.signature(model.forward).parameters
    missing = [name for name in ("input_ids", "position_ids", "cache", "logits_to_keep") if name not in accepted]
    if missing:
        raise UnsupportedModelError(kind, f"its forward does not take {', '.join(missing)}")


@torch.no_grad()
def _own_logits(model: PreTrainedModel) -> Tensor:
    """After the tokens of the check, by the attention that the model has now."""
    output = model(input_ids=torch.tensor([_CHECKED], device=model.device), use_cache=False, logits_to_keep=1)
    logits: Tensor = output.logits[0].float()
    return logits


def _check_run(model: PreTrainedModel, expected: Tensor) -> None:
    cache, recorder = EntryCache(sliding_windows(model.config)), QueryRecorder(window=1)
    with recording([recorder]):
        logits = forward(model, cache, _CHECKED)
    bypassed = [i for i, layer in enumerate(cache.layers) if layer.length != len(_CHECKED) or i not in recorder.layers]
    if bypassed:
        raise UnsupportedModelError(model.config.model_type, f"the layers {bypassed} do not use cache and attention")
    if not bool((logits - expected).abs().max() <= _TOLERANCE * expected.abs().max()):
        raise UnsupportedModelError(model.config.model_type, "its attention does more than this library knows of")
