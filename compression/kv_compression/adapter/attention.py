"""The attention function and the mask function that an attached model uses."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from kv_compression.adapter.layers import HandedOver, handed_over
from kv_compression.attention import attend, attend_entries, mask_of
from kv_compression.errors import UnsupportedModelError
from kv_compression.recorders import AttentionCall, Recorder

NAME = "kv_compression"
_OUTPUT_NAMES = ("o_proj", "dense", "out_proj", "c_proj", "wo")

_recorders: ContextVar[Sequence[Sequence[Recorder]]] = ContextVar("recorders", default=())


@contextmanager
def recording(*recorders: Sequence[Recorder]) -> Iterator[None]:
    """Within this block, in this thread, forwards of attached models report to the recorders, given by sequence."""
    token = _recorders.set(recorders)
    try:
        yield
    finally:
        _recorders.reset(token)


def _attention(
    module: nn.Module,
    query: Tensor,  # [batch, query_heads, tokens, head_dim]
    key: Tensor,  # [batch, kv_heads, entries, head_dim]
    value: Tensor,  # [batch, kv_heads, entries, value_dim]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    _refuse_unknown(module, kwargs)
    if attention_mask is not None:
        raise ValueError("masks of the caller's own are not supported: a token looks at all that came before it")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    handed = _handed(module, key, value)
    if handed is None:
        mask, causal = mask_of(query, key.shape[2], sliding_window)
        return attend(query, key, value, mask, causal, scale, softcap).transpose(1, 2).contiguous(), None
    queries = query.split(list(handed.tokens), dim=2)
    for of_sequence, entries, recorders in zip(queries, handed.entries, _recorders.get(), strict=False):
        for recorder in recorders:
            output = output_weights(module, query.shape[1], value.shape[-1])
            layer = int(module.layer_idx)  # type: ignore[arg-type]
            recorder.record(AttentionCall(layer, of_sequence[0], entries, scale, softcap, sliding_window, output))
    outputs = [
        attend_entries(of_sequence, entries, scale, softcap, sliding_window).transpose(1, 2)
        for of_sequence, entries in zip(queries, handed.entries, strict=True)
    ]
    return torch.cat(outputs, dim=1), None


def output_weights(module: nn.Module, heads: int, dim: int) -> Tensor | None:
    """What maps a head's output into the residual stream, [hidden, query_heads, value_dim]: a view of the weights.

    None when no linear module of the usual names is found.
    """
    for name in _OUTPUT_NAMES:
        projection = getattr(module, name, None)
        if isinstance(projection, nn.Linear) and projection.in_features == heads * dim:
            return projection.weight.view(-1, heads, dim)
    return None


def _handed(module: nn.Module, key: Tensor, value: Tensor) -> HandedOver | None:
    """What the layer's KVCaches hold now; None when it has another cache or none."""
    handed = handed_over.get()
    handed_over.set(None)
    if handed is None or (handed.keys is key and handed.values is value):
        return handed
    raise UnsupportedModelError(type(module).__name__, "it changes the keys or values that its cache returned")


def _refuse_unknown(module: nn.Module, arguments: dict[str, Any]) -> None:
    unknown = [name for name in ("s_aux", "sinks", "position_bias") if arguments.get(name) is not None]
    if unknown:
        raise UnsupportedModelError(type(module).__name__, f"its attention takes {', '.join(unknown)}")
    if not getattr(module, "is_causal", True):
        raise UnsupportedModelError(type(module).__name__, "it attends to what comes after, as encoders of images do")


def _no_mask(
    *args: Any,
    config: PretrainedConfig,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    **kwargs: Any,
) -> None:
    """`_attention` makes its own masks; what these cannot express must not pass in silence."""
    if q_offset + q_length != kv_offset + kv_length:
        raise ValueError("static caches are not supported: their last key is not the last token's")
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError(
            "padded batches are not supported: give every sequence a cache of its own, and run them with run_together"
        )
    if use_vmap:
        raise UnsupportedModelError(config.model_type, "it changes the causal mask")


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _no_mask)
