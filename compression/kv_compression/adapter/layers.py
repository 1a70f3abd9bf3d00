"""A sequence's layers as transformers' cache classes. What they hold reaches attention past transformers, which knows
no tensors of heads with different numbers of entries."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from kv_compression.cache import LayerBuffer, LayerEntries


@dataclass(frozen=True)
class HandedOver:
    """What a layer that was updated returned to transformers as `keys` and `values`, and what these stand for: of every
    sequence the entries, and how many of the new tokens are its own."""

    keys: Tensor
    values: Tensor
    entries: Sequence[LayerEntries]
    tokens: Sequence[int]


handed_over: ContextVar[HandedOver | None] = ContextVar("handed_over", default=None)
"""By the layer that was updated last."""


class EntryLayer(CacheLayerMixin):
    """One layer of a cache for one sequence. `sliding_window` is None for a layer with full attention.

    Assisted decoding takes rejected tokens back with `crop`. A sliding window has left the entries behind that it needs
    then, so transformers calls `activate_past_recording` before: from then on they stay until the next tokens come.
    """

    is_croppable = True

    def __init__(self, sliding_window: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sliding_window = sliding_window
        self.buffer = LayerBuffer()
        self.length = 0
        self.record_past = False  # by the name that transformers looks for

    @property
    def is_sliding(self) -> bool:
        """Whether transformers is to plan a sliding mask."""
        return self.sliding_window is not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffer takes its shape from what is appended."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the states of new tokens [1, kv_heads, tokens, dim]; all keys and values that they may attend to."""
        if key_states.shape[0] != 1:
            sequences = key_states.shape[0]
            raise ValueError(
                f"a KVCache holds one sequence, not {sequences}: no batches, beams or num_return_sequences"
            )
        held = self.append(key_states[0], value_states[0])
        dense = held.dense()
        states = (key_states, value_states) if dense is None else (dense.keys[None], dense.values[None])
        handed_over.set(HandedOver(*states, [held], [key_states.shape[2]]))
        return states

    def append(self, keys: Tensor, values: Tensor) -> LayerEntries:
        """The same for states [kv_heads, tokens, dim]: all entries that the new tokens may attend to."""
        if self.record_past:
            self.slide()
        held = self.buffer.append_tokens(keys, values, self.length)
        if not self.record_past:
            self.slide()
        self.length += keys.shape[1]
        return held

    def slide(self) -> None:
        """Drop what the sliding window has left behind: the next token attends to so many entries and itself."""
        if self.sliding_window is not None:
            self.buffer.drop_first(self.buffer.longest - self.sliding_window + 1)

    def activate_past_recording(self) -> None:
        """From now on, `crop` can take back what the last `update` appended, whatever the sliding window."""
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens; their number is negative, as in transformers.

        Of tokens that a policy chose from, those that were dropped stay dropped. Raises ValueError when more are to be
        taken back than there are, or than a sliding window can.
        """
        tokens = -tokens_to_remove
        length = self.length - tokens
        if not 0 <= length <= self.length:
            raise ValueError(
                f"crop({tokens_to_remove}): a negative number of the cache's {self.length} tokens is taken"
            )
        if self.sliding_window is not None and self.buffer.longest - tokens < min(self.sliding_window - 1, length):
            raise ValueError(
                f"crop({tokens_to_remove}): the sliding window has left behind what comes before. Call the cache's "
                "activate_past_recording() before the forward whose tokens are to be taken back"
            )
        if tokens:
            self.buffer.take_back(tokens, length)
            self.length = length
        self.slide()

    def reset(self) -> None:
        """Forget everything."""
        self.buffer = LayerBuffer()
        self.length = 0

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


class BatchLayer(CacheLayerMixin):
    """One layer of several sequences, whose new tokens lie one sequence behind another in one row."""

    def __init__(self, layers: Sequence[EntryLayer], tokens: Sequence[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layers = layers
        self._tokens = tokens

    @property
    def is_sliding(self) -> bool:
        """As of its sequences."""
        return self._layers[0].is_sliding

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do, as in `EntryLayer`."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append every sequence's part of the states [1, kv_heads, tokens, dim] to its own layer."""
        pieces = zip(
            self._layers,
            key_states[0].split(list(self._tokens), dim=1),
            value_states[0].split(list(self._tokens), dim=1),
            strict=True,
        )
        held = [layer.append(keys, values) for layer, keys, values in pieces]
        handed_over.set(HandedOver(key_states, value_states, held, self._tokens))
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Of the longest sequence: positions are given with the tokens."""
        return max(layer.length for layer in self._layers)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """For a mask that nobody makes."""
        return query_length, self.get_seq_length()

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class EntryBatch(Cache):
    """The layers of several sequences, for one forward of so many new tokens of each one."""

    def __init__(self, caches: Sequence[EntryCache], tokens: Sequence[int]) -> None:
        by_layer = zip(*(cache.layers for cache in caches), strict=True)
        super().__init__(layers=[BatchLayer(layers, tokens) for layers in by_layer])
