"""The attention function and the mask function that an attached model uses."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from kv_compression.adapter.layers import handed_over
from kv_compression.attention import attend, attend_ragged, causal_mask
from kv_compression.cache import LayerEntries
from kv_compression.errors import UnsupportedModelError
from kv_compression.recorders import AttentionCall, Recorder

NAME = "kv_compression"
_OUTPUT_NAMES = ("o_proj", "dense", "out_proj", "c_proj", "wo")

_recorders: ContextVar[Sequence[Recorder]] = ContextVar("recorders", default=())


@contextmanager
def recording(recorders: Sequence[Recorder]) -> Iterator[None]:
    """Within this block, in this thread, forwards of attached models on a KVCache report to the recorders."""
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
    held = _entries(module, key)
    if held is not None:
        for recorder in _recorders.get():
            output = output_weights(module, query.shape[1], value.shape[-1])
            layer = int(module.layer_idx)  # type: ignore[arg-type]
            recorder.record(AttentionCall(layer, query[0], held, scale, softcap, sliding_window, output))
        if held.dense() is None:
            return attend_ragged(query, held, scale, softcap).transpose(1, 2).contiguous(), None
    tokens, entries = query.shape[2], key.shape[2]
    window = None if sliding_window is None or entries <= sliding_window else sliding_window
    causal = window is None and tokens == entries > 1
    seen_by_all = causal or (tokens == 1 and window is None)
    mask = None if seen_by_all else causal_mask(tokens, entries, window, query.dtype, query.device)
    return attend(query, key, value, mask, causal, scale, softcap).transpose(1, 2).contiguous(), None


def output_weights(module: nn.Module, heads: int, dim: int) -> Tensor | None:
    """What maps a head's output into the residual stream, [hidden, query_heads, value_dim]: a view of the weights.

    None when no linear module of the usual names is found.
    """
    for name in _OUTPUT_NAMES:
        projection = getattr(module, name, None)
        if isinstance(projection, nn.Linear) and projection.in_features == heads * dim:
            return projection.weight.view(-1, heads, dim)
    return None


def _entries(module: nn.Module, key: Tensor) -> LayerEntries | None:
    """What the layer's KVCache holds now; None when it has another cache or none."""
    handed = handed_over.get()
    handed_over.set(None)
    if handed is None or handed[0] is key:
        return None if handed is None else handed[1]
    raise UnsupportedModelError(type(module).__name__, "it changes the keys that its cache returned")


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
        raise ValueError("padded batches are not supported: run one sequence at a time")
    if use_vmap:
        raise UnsupportedModelError(config.model_type, "it changes the causal mask")


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _no_mask)
