"""The only file that touches the inside of transformers: its attention interface and its cache classes.

A model that was `attach`ed computes attention with `_attention`. The mask is built from the shapes of the layer's own keys,
so layers may hold different numbers of entries. Nothing is kept on modules: the queries that a policy wants to see reach
their `QueryRecorder` through a context variable, so sessions can take turns on one model.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from kv_compression.cache import LayerBuffer, LayerEntries
from kv_compression.errors import UnsupportedModelError

NAME = "kv_compression"


class QueryRecorder:
    """The last `window` queries of every layer: `queries[layer]` is [query_heads, window or fewer, head_dim]."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.queries: dict[int, Tensor] = {}
        self.scaling: dict[int, float] = {}

    def record(self, layer: int, query: Tensor, scaling: float) -> None:
        """`query` [1, query_heads, tokens, head_dim] after RoPE."""
        new = query[0, :, -self.window :]
        if layer in self.queries and new.shape[1] < self.window:
            new = torch.cat([self.queries[layer], new], dim=1)[:, -self.window :]
        self.queries[layer] = new.clone()  # the chunk's queries are freed
        self.scaling[layer] = scaling


_recorder: ContextVar[QueryRecorder | None] = ContextVar("recorder", default=None)


@contextmanager
def recording(recorder: QueryRecorder) -> Iterator[None]:
    """Within this block, in this thread, forwards of attached models report their queries to `recorder`."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


class EntryLayer(CacheLayerMixin):
    """One layer of a cache for one sequence. `sliding_window` is None for a layer with full attention."""

    is_sliding = False

    def __init__(self, sliding_window: int | None) -> None:
        super().__init__()
        self.sliding_window = sliding_window
        self.buffer = LayerBuffer()
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffer takes its shape from what is appended."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the states of new tokens [1, kv_heads, tokens, dim]; all keys and values that they may attend to."""
        if key_states.shape[0] != 1:
            raise ValueError(f"a KVCache holds one sequence; the batch has {key_states.shape[0]}")
        tokens = key_states.shape[2]
        positions = torch.arange(self.length, self.length + tokens, dtype=torch.int32, device=key_states.device)
        new = LayerEntries(key_states[0], value_states[0], positions.expand(key_states.shape[1], -1))
        if self.sliding_window is not None:
            self.buffer.drop_first(self.buffer.count - self.sliding_window + 1)
        held = self.buffer.append(new)
        self.length += tokens
        return held.keys[None], held.values[None]

    def get_seq_length(self) -> int:
        """Tokens seen, however many entries are kept."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Not used: `_attention` builds its masks itself."""
        return self.buffer.count + query_length, 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class EntryCache(Cache):
    """The layers of one sequence, as transformers wants them."""

    layers: list[EntryLayer]

    def __init__(self, sliding_windows: Sequence[int | None]) -> None:
        super().__init__(layers=[EntryLayer(window) for window in sliding_windows])


def attach(model: PreTrainedModel) -> None:
    """Route the model's attention through this library. Raises UnsupportedModelError."""
    sliding_windows(model.config)
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedModelError(model.config.model_type, "it does not use transformers' attention interface")
    model.set_attn_implementation(NAME)


def sliding_windows(config: PretrainedConfig) -> list[int | None]:
    """The sliding window of every layer in tokens, None where attention is full. Raises UnsupportedModelError."""
    text = config.get_text_config()
    if getattr(text, "kv_lora_rank", None) is not None:
        raise UnsupportedModelError(text.model_type, "it caches latent attention states (MLA), not keys and values")
    if getattr(text, "attn_logit_softcapping", None) is not None:
        raise UnsupportedModelError(text.model_type, "its attention logits are soft-capped")
    return [_sliding_window(layer, text.model_type) for layer in DynamicCache(config=text).layers]


def _sliding_window(layer: object, model_type: str) -> int | None:
    if isinstance(layer, DynamicSlidingWindowLayer):
        return int(layer.sliding_window)
    if isinstance(layer, DynamicLayer):
        return None
    raise UnsupportedModelError(model_type, f"a layer keeps its state in {type(layer).__name__}")


def _attention(
    module: nn.Module,
    query: Tensor,  # [batch, query_heads, tokens, head_dim]
    key: Tensor,  # [batch, kv_heads, entries, head_dim]
    value: Tensor,  # [batch, kv_heads, entries, value_dim]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if kwargs.get("s_aux") is not None or kwargs.get("softcap") is not None:
        raise UnsupportedModelError(type(module).__name__, "its attention has sinks or soft caps")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    recorder = _recorder.get()
    if recorder is not None:
        recorder.record(int(module.layer_idx), query, scale)  # type: ignore[arg-type]
    tokens, entries = query.shape[2], key.shape[2]
    causal = tokens == entries and sliding_window is None
    mask = None if tokens == 1 or causal else _mask(tokens, entries, sliding_window, query.device)
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal and tokens > 1,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.transpose(1, 2).contiguous(), None


@lru_cache(maxsize=8)
def _mask(tokens: int, entries: int, sliding_window: int | None, device: torch.device) -> Tensor:
    """[tokens, entries], True where a token may look: at all that came before, as far back as its window reaches."""
    distance = torch.arange(entries - tokens, entries, device=device)[:, None] - torch.arange(entries, device=device)
    seen = distance >= 0
    return seen if sliding_window is None else seen & (distance < sliding_window)


def _no_mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> None:
    """`_attention` makes its own masks; what it cannot express must not pass in silence."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("padded batches are not supported: run one sequence at a time")


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _no_mask)
