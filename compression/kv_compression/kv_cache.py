"""The cache of one sequence: run the model on it, select from it, take segments out and build it from them."""

from collections.abc import Iterable, Sequence

import torch
from transformers import PretrainedConfig

from kv_compression.cache import LayerEntries
from kv_compression.codec import Shape, read_segment
from kv_compression.errors import SegmentError
from kv_compression.frame import Chunk
from kv_compression.observation import Observation
from kv_compression.policies.base import Policy
from kv_compression.segment import Segment, check_sequence
from kv_compression.transformers_adapter import EntryCache, sliding_windows, widest_entry


class KVCache(EntryCache):
    """A transformers cache for one sequence, on `device`, of `dtype`. Raises UnsupportedModelError."""

    def __init__(self, config: PretrainedConfig, *, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__(sliding_windows(config))
        self.config = config
        self.device = torch.device(device)
        self.dtype = dtype

    @property
    def length(self) -> int:
        """Tokens seen: the position of the next one, whatever was dropped."""
        return self.layers[0].length

    @property
    def entries(self) -> float:
        """Positions kept per KV head, averaged over the layers."""
        return sum(layer.buffer.count for layer in self.layers) / len(self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys, values and positions held."""
        return sum(layer.buffer.nbytes for layer in self.layers)

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` more at the next append, so that those behind it move nothing."""
        for layer in self.layers:
            if layer.sliding_window is None:
                layer.buffer.reserve(tokens)

    @torch.no_grad()
    def select(self, policy: Policy, observation: Observation, *, room: int = 0) -> "KVCache":
        """A new cache with what the policy keeps and room for `room` more tokens; this one is untouched.

        `observation` is of the prefill that ran last on this cache; ValueError when tokens came after it, or when it
        saw fewer of them than the policy asks for. Layers with a sliding window are copied as they are.
        """
        if observation.length != self.length:
            raise ValueError("the observation is of another cache, or tokens were added since")
        if observation.window < min(policy.window, observation.tokens):
            raise ValueError(f"the policy's window is {policy.window}, the prefill's was {observation.window}")
        chosen = KVCache(self.config, device=self.device, dtype=self.dtype)
        for index, (source, target) in enumerate(zip(self.layers, chosen.layers, strict=True)):
            held = source.buffer.entries
            assert held is not None
            indices = None if source.sliding_window else policy.choose(held, observation.of(index))
            kept = held if indices is None else held.take(indices)
            target.buffer.reserve(kept.count + room)
            target.buffer.append(kept)
            target.length = source.length
        return chosen

    def segment(self, start: int, stop: int | None = None) -> Segment:
        """The entries of the positions from `start` to `stop` (default: all), on the CPU.

        On a CPU cache they are views, which later tokens do not change. Raises SegmentError when the range is not
        within the sequence, or when the heads of a layer do not hold equally many of its entries.
        """
        stop = self.length if stop is None else stop
        if not 0 <= start <= stop <= self.length:
            raise SegmentError(f"the tokens from {start} to {stop} are not within the sequence's {self.length}")
        return Segment(start, stop, [_between(layer.buffer.entries, start, stop) for layer in self.layers])

    @classmethod
    def from_segments(
        cls,
        config: PretrainedConfig,
        segments: Sequence[Segment],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        room: int = 0,
    ) -> "KVCache":
        """The cache that the segments were taken from, in their order, with room for `room` more tokens.

        Raises SegmentError when they do not make one sequence of this model, from its first token on.
        """
        cache = cls(config, device=device, dtype=dtype)
        check_sequence(segments, [layer.sliding_window for layer in cache.layers])
        for index, layer in enumerate(cache.layers):
            pieces = [segment.layers[index] for segment in segments]
            layer.buffer.reserve(sum(piece.count for piece in pieces) + room * (layer.sliding_window is None))
            for piece in pieces:
                layer.buffer.append(_moved(piece, cache.device, dtype))
            if layer.sliding_window is not None:
                layer.buffer.drop_first(layer.buffer.count - layer.sliding_window + 1)
            layer.length = segments[-1].stop
        return cache

    @classmethod
    def restore(
        cls,
        config: PretrainedConfig,
        segments: Iterable[Iterable[Chunk]],
        fingerprint: str,
        *,
        tokens: int,
        device: torch.device | str,
        dtype: torch.dtype,
        room: int = 0,
    ) -> "KVCache":
        """The cache whose segments were encoded to these chunks, read as they come, with room for `room` more tokens.

        `tokens` is the length that the cache must have; no memory is taken for more. Raises CodecError or SegmentError
        when the chunks do not make that cache of this model.
        """
        cache = cls(config, device=device, dtype=dtype)
        for layer in cache.layers:
            layer.buffer.reserve(tokens + room if layer.sliding_window is None else 0)
        read = [cache._read(chunks, fingerprint, tokens) for chunks in segments]
        if cache.length != tokens:
            raise SegmentError(f"the segments end at {cache.length}, not at {tokens}")
        check_sequence(read, [layer.sliding_window for layer in cache.layers])
        for layer in cache.layers:
            if layer.sliding_window is not None:
                layer.buffer.drop_first(layer.buffer.count - layer.sliding_window + 1)
        return cache

    def _read(self, chunks: Iterable[Chunk], fingerprint: str, tokens: int) -> Segment:
        """Append one encoded segment. On the CPU the bytes go from the chunk to their place in the buffer."""
        in_place, widest = self.device.type == "cpu", widest_entry(self.config)

        def allocate(shapes: Sequence[Shape], start: int, stop: int) -> list[LayerEntries]:
            if start != self.length or stop > tokens or len(shapes) != len(self.layers):
                raise SegmentError("a segment of another sequence or model")
            if any(shape.entries > stop - start or shape.dtype != self.dtype for shape in shapes):
                raise SegmentError("a segment of more entries than tokens, or of another type")
            likes = [shape.like() for shape in shapes]
            if any(shape.heads * max(shape.head_dim, shape.value_dim) > widest for shape in shapes):
                raise SegmentError("a segment of wider entries than the model's")
            if not all(layer.buffer.takes(like) for layer, like in zip(self.layers, likes, strict=True)):
                raise SegmentError("a segment of other shapes than the one before it")
            if in_place:
                return [layer.buffer.extend(like) for layer, like in zip(self.layers, likes, strict=True)]
            return [like.empty() for like in likes]

        segment = read_segment(chunks, fingerprint, allocate)
        for layer, entries in zip(self.layers, segment.layers, strict=True):
            if not in_place:
                layer.buffer.append(_moved(entries, self.device, self.dtype))
            layer.length = segment.stop
        return segment


def _between(held: LayerEntries | None, start: int, stop: int) -> LayerEntries:
    if held is None:
        raise SegmentError("the cache is empty")
    first = (held.positions < start).sum(dim=1)
    last = (held.positions < stop).sum(dim=1)
    if bool((first != first[0]).any()) or bool((last != last[0]).any()):
        raise SegmentError(f"the heads hold different numbers of the entries from {start} to {stop}")
    return _moved(held.slice(int(first[0]), int(last[0])), torch.device("cpu"), held.keys.dtype)


def _moved(entries: LayerEntries, device: torch.device, dtype: torch.dtype) -> LayerEntries:
    return LayerEntries(entries.keys.to(device, dtype), entries.values.to(device, dtype), entries.positions.to(device))
