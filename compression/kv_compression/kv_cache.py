"""The cache of one sequence: run the model on it, select from it, take segments out and build it from them."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from transformers import PretrainedConfig

from kv_compression.adapter import EntryCache, EntryLayer, sliding_windows, widest_entry
from kv_compression.cache import LayerEntries
from kv_compression.codec import Shape, read_segment
from kv_compression.errors import SegmentError
from kv_compression.frame import Chunk
from kv_compression.observation import LayerObservation, Observation
from kv_compression.policies.base import Policy
from kv_compression.segment import Segment, check_sequence


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
        """Positions kept per KV head, averaged over all heads of all layers."""
        counts = [count for layer in self.layers for count in layer.buffer.counts]
        return sum(counts) / max(len(counts), 1)

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
    def select(self, policy: Policy, observation: Observation, *, since: int = 0, room: int = 0) -> "KVCache":
        """A new cache with what the policy keeps and room for `room` more tokens; this one is untouched.

        With `since` only the entries from that position on are chosen from, and those before it stay.

        `observation` is of the prefill that ran last on this cache; ValueError when tokens came after it, or when it
        saw fewer of them than the policy asks for. Layers with a sliding window are copied as they are.
        """
        if observation.length != self.length:
            raise ValueError("the observation is of another cache, or tokens were added since")
        if observation.window < min(policy.window, observation.tokens):
            raise ValueError(f"the policy's window is {policy.window}, the prefill's was {observation.window}")
        held = self._held()
        full = [index for index, layer in enumerate(self.layers) if layer.sliding_window is None]
        choices = _choose(policy, {index: (held[index], observation.of(index)) for index in full}, since)
        chosen = KVCache(self.config, device=self.device, dtype=self.dtype)
        for index, (entries, target) in enumerate(zip(held, chosen.layers, strict=True)):
            kept = entries.take(choices[index]) if index in choices else entries
            target.buffer.append(kept, room=room)
            target.length = self.length
        return chosen

    def copy(self, *, room: int = 0) -> "KVCache":
        """The same in memory of its own, with room for `room` more tokens."""
        held = Segment(0, self.length, self._held())
        return KVCache.from_segments(self.config, [held], device=self.device, dtype=self.dtype, room=room)

    def _held(self) -> list[LayerEntries]:
        """Of every layer; of none when the cache is empty."""
        return [entries for layer in self.layers if (entries := layer.buffer.entries) is not None]

    def segment(self, start: int, stop: int | None = None) -> Segment:
        """The entries of the positions from `start` to `stop` (default: all), on the CPU.

        On a CPU cache they are views, which later tokens do not change. Raises SegmentError when the range is not
        within the sequence.
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
            more = sum(max(piece.counts) for piece in pieces[1:]) + room * (layer.sliding_window is None)
            for piece in pieces:
                layer.buffer.append(piece.to(cache.device, dtype), room=more)
            layer.slide()
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
        read = [cache._read(chunks, fingerprint, tokens, room) for chunks in segments]
        if cache.length != tokens:
            raise SegmentError(f"the segments end at {cache.length}, not at {tokens}")
        check_sequence(read, [layer.sliding_window for layer in cache.layers])
        for layer in cache.layers:
            layer.slide()
        return cache

    def _read(self, chunks: Iterable[Chunk], fingerprint: str, tokens: int, room: int) -> Segment:
        """Append one encoded segment. On the CPU the bytes go from the chunk to their place in the buffer."""
        in_place, widest = self.device.type == "cpu", widest_entry(self.config)

        def allocate(shapes: Sequence[Shape], start: int, stop: int) -> list[LayerEntries]:
            if start != self.length or stop > tokens or len(shapes) != len(self.layers):
                raise SegmentError("a segment of another sequence or model")
            if any(max(shape.counts) > stop - start or shape.dtype != self.dtype for shape in shapes):
                raise SegmentError("a segment of more entries than tokens, or of another type")
            likes = [shape.like() for shape in shapes]
            if any(len(shape.counts) * max(shape.head_dim, shape.value_dim) > widest for shape in shapes):
                raise SegmentError("a segment of wider entries than the model's")
            if not all(layer.buffer.takes(like) for layer, like in zip(self.layers, likes, strict=True)):
                raise SegmentError("a segment of other shapes than the one before it")
            if in_place:
                return [
                    self._extend(layer, like, tokens - stop + room)
                    for layer, like in zip(self.layers, likes, strict=True)
                ]
            return [like.empty() for like in likes]

        segment = read_segment(chunks, fingerprint, allocate)
        for layer, entries in zip(self.layers, segment.layers, strict=True):
            if not in_place:
                moved = entries.to(self.device, self.dtype)
                self._extend(layer, moved, tokens - segment.stop + room).write(moved)
            layer.length = segment.stop
        return segment

    def _extend(self, layer: EntryLayer, like: LayerEntries, room: int) -> LayerEntries:
        """Room in a layer for a segment, and behind it for the tokens that will come; a sliding window needs none."""
        return layer.buffer.extend(like, room=room if layer.sliding_window is None else 0)


def _choose(
    policy: Policy, layers: Mapping[int, tuple[LayerEntries, LayerObservation]], since: int
) -> dict[int, list[torch.Tensor]]:
    """`Policy.choose` among the entries from position `since` on; the indices of all that stays."""
    if since == 0:
        return policy.choose(layers)
    firsts = {layer: _indices(entries, since)[0] for layer, (entries, _) in layers.items()}
    new = {layer: (entries.slice(firsts[layer], entries.counts), seen) for layer, (entries, seen) in layers.items()}
    return {
        layer: [
            torch.cat([torch.arange(first, device=choice.device), first + choice])
            for first, choice in zip(firsts[layer], chosen, strict=True)
        ]
        for layer, chosen in policy.choose(new).items()
    }


def _between(held: LayerEntries | None, start: int, stop: int) -> LayerEntries:
    if held is None:
        raise SegmentError("the cache is empty")
    between = held.slice(*_indices(held, start, stop))
    return between.to(torch.device("cpu"), held.keys.dtype)


def _indices(entries: LayerEntries, *positions: int) -> list[list[int]]:
    """For each of the positions: of every head the index of its first entry from there on."""
    limits = torch.tensor(positions, dtype=torch.int32, device=entries.positions.device)
    found = [torch.searchsorted(head.positions, limits).tolist() for head in entries]
    return [list(of_heads) for of_heads in zip(*found, strict=True)]
