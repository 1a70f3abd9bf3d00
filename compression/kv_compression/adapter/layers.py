"""A sequence's layers as transformers' cache classes. What they hold reaches attention past transformers, which knows
no tensors of heads with different numbers of entries."""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from kv_compression.cache import LayerBuffer, LayerEntries

handed_over: ContextVar[tuple[Tensor, LayerEntries] | None] = ContextVar("handed_over", default=None)
"""What the layer that was updated last returned to transformers as its keys, and the entries that these stand for."""


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
        self.slide()
        self.length += key_states.shape[2]
        dense = held.dense()
        states = (key_states, value_states) if dense is None else (dense.keys[None], dense.values[None])
        handed_over.set((states[0], held))
        return states

    def slide(self) -> None:
        """Drop what the sliding window has left behind: the next token attends to so many entries and itself."""
        if self.sliding_window is not None:
            self.buffer.drop_first(self.buffer.longest - self.sliding_window + 1)

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
