"""Models: which can be attached, what their layers are, and how tokens run through them."""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs

from kv_compression.adapter.attention import NAME, recording
from kv_compression.adapter.generation import prepare_generation
from kv_compression.adapter.layers import EntryCache, handed_over
from kv_compression.errors import UnsupportedModelError
from kv_compression.recorders import QueryRecorder


def attach(model: PreTrainedModel) -> None:
    """Route the model's attention through this library, and run one token to see that all layers follow.

    Raises UnsupportedModelError, and then leaves the model as it was.
    """
    _check_class(model)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        _check_run(model)
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
    if model.config._attn_implementation != NAME:
        raise ValueError("attach(model) comes first")
    handed_over.set(None)  # what a forward that failed may have left
    start = cache.layers[0].length
    input_ids = torch.tensor([token_ids], device=model.device)
    positions = torch.arange(start, start + len(token_ids), device=model.device)
    output = model(input_ids=input_ids, position_ids=positions[None], cache=cache, use_cache=True, logits_to_keep=keep)
    logits: Tensor = output.logits[0, -keep:].float()
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


def _check_run(model: PreTrainedModel) -> None:
    cache, recorder = EntryCache(sliding_windows(model.config)), QueryRecorder(window=1)
    with recording([recorder]):
        forward(model, cache, [0])
    bypassed = [i for i, layer in enumerate(cache.layers) if layer.length != 1 or i not in recorder.layers]
    if bypassed:
        raise UnsupportedModelError(model.config.model_type, f"the layers {bypassed} do not use cache and attention")
