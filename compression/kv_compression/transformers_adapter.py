"""The only file that touches the inside of transformers: its attention interface and its cache classes.

A model that was `attach`ed computes attention with `_attention`. The mask is built from the shapes of the layer's own
keys, so layers may hold different numbers of entries. A layer whose heads do, too, hands its entries to `_attention`
past transformers, which knows no such tensors. Nothing is kept on modules: the queries that a policy wants to see
reach their `QueryRecorder` through a context variable, so sessions can take turns on one model.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, get_layer_types_and_kwargs
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from kv_compression.attention import attend, attend_ragged, causal_mask
from kv_compression.cache import LayerBuffer, LayerEntries
from kv_compression.errors import UnsupportedModelError
from kv_compression.observation import LayerObservation

NAME = "kv_compression"


class Recorder(Protocol):
    """Sees what every layer's attention is given."""

    def record(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> None:
        """`query` [1, query_heads, tokens, head_dim] after RoPE, `key` [1, kv_heads, entries, head_dim]; of heads that
        hold different numbers of entries, `key` has only the new ones."""


class QueryRecorder:
    """Keeps the last `window` queries of every layer, whichever chunks they come in."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.layers: dict[int, LayerObservation] = {}

    def record(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> None:
        """Copy the queries."""
        new = query[0, :, -self.window :]
        if layer in self.layers and new.shape[1] < self.window:
            new = torch.cat([self.layers[layer].queries, new], dim=1)[:, -self.window :]
        self.layers[layer] = LayerObservation(new.clone(), scaling, softcap)  # a copy: the chunk's queries are freed


_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
# what a layer with ragged heads returned to transformers as its keys, and what `_attention` is to use in their place
_ragged: ContextVar[tuple[Tensor, LayerEntries] | None] = ContextVar("ragged", default=None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Within this block, in this thread, forwards of attached models report to `recorder`."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


class EntryLayer(CacheLayerMixin):
    """One layer of a cache for one sequence. `sliding_window` is None for a layer with full attention."""

    def __init__(self, sliding_window: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sliding_window = sliding_window
        self.buffer = LayerBuffer()
        self.length = 0

    @property
    def is_sliding(self) -> bool:
        """Whether transformers is to plan a sliding mask."""
        return self.sliding_window is not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffer takes its shape from what is appended."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the states of new tokens [1, kv_heads, tokens, dim]; all keys and values that they may attend to."""
        if key_states.shape[0] != 1:
            raise ValueError(f"a KVCache holds one sequence; the batch has {key_states.shape[0]}")
        held = self.buffer.append_tokens(key_states[0], value_states[0], self.length)
        if self.sliding_window is not None:  # the next token attends to so many entries and itself
            self.buffer.drop_first(self.buffer.longest - self.sliding_window + 1)
        self.length += key_states.shape[2]
        dense = held.dense()
        _ragged.set((key_states, held) if dense is None else None)
        return (key_states, value_states) if dense is None else (dense.keys[None], dense.values[None])

    def get_seq_length(self) -> int:
        """Tokens seen, however many entries are kept."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of keys, and the position of the first if no gaps were between them and the next token."""
        return self.buffer.longest + query_length, self.length - self.buffer.longest

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class EntryCache(Cache):
    """The layers of one sequence, as transformers wants them."""

    layers: list[EntryLayer]  # type: ignore[assignment]

    def __init__(self, sliding_windows: Sequence[int | None]) -> None:
        super().__init__(layers=[EntryLayer(window) for window in sliding_windows])


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
def forward(model: PreTrainedModel, cache: EntryCache, token_ids: Sequence[int]) -> Tensor:
    """Append tokens to the cache, at their true positions; the logits after the last one [vocab], float32."""
    start = cache.layers[0].length
    input_ids = torch.tensor([token_ids], device=model.device)
    positions = torch.arange(start, start + len(token_ids), device=model.device)
    output = model(input_ids=input_ids, position_ids=positions[None], cache=cache, use_cache=True, logits_to_keep=1)
    logits: Tensor = output.logits[0, -1].float()
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
    with recording(recorder):
        forward(model, cache, [0])
    bypassed = [i for i, layer in enumerate(cache.layers) if layer.length != 1 or i not in recorder.layers]
    if bypassed:
        raise UnsupportedModelError(model.config.model_type, f"the layers {bypassed} do not use cache and attention")


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
    unknown = [name for name in ("s_aux", "sinks", "position_bias") if kwargs.get(name) is not None]
    if unknown:
        raise UnsupportedModelError(type(module).__name__, f"its attention takes {', '.join(unknown)}")
    if not getattr(module, "is_causal", True):
        raise UnsupportedModelError(type(module).__name__, "it attends to what comes after, as encoders of images do")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    recorder = _recorder.get()
    if recorder is not None:
        recorder.record(int(module.layer_idx), query, key, scale, softcap)  # type: ignore[arg-type]
    if (ragged := _ragged.get()) is not None:
        _ragged.set(None)
        if ragged[0] is not key:
            raise UnsupportedModelError(type(module).__name__, "it changes the keys that its cache returned")
        return attend_ragged(query, ragged[1], scale, softcap).transpose(1, 2).contiguous(), None
    tokens, entries = query.shape[2], key.shape[2]
    window = None if sliding_window is None or entries <= sliding_window else sliding_window
    causal = window is None and tokens == entries > 1
    seen_by_all = causal or (tokens == 1 and window is None)
    mask = None if seen_by_all else causal_mask(tokens, entries, window, query.dtype, query.device)
    return attend(query, key, value, mask, causal, scale, softcap).transpose(1, 2).contiguous(), None


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
