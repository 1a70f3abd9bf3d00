"""Prefill bounded in memory: all of the prompt through one layer, what the policy keeps of it, then the next layer.

A layer's whole keys and values are there until the policy has chosen from them, and no other layer's. Between layers
the prompt is its hidden states [tokens, hidden].
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kv_compression.adapter import LayerCall, separate_layers
from kv_compression.cache import LayerBuffer, LayerEntries
from kv_compression.kv_cache import KVCache
from kv_compression.observation import LayerObservation
from kv_compression.observer import Observer
from kv_compression.policies import Policy
from kv_compression.prefill import in_chunks


class LayerwisePrefill:
    """`Prefill` and `select` in one: the same entries and logits, chosen layer by layer.

    model: attached. policy: one whose allocation needs no other layer's scores. start: a cache that came before, full
    or compressed; it is not changed. room: for so many more tokens. observer: that of the prefill before, as for
    `Prefill`. A step is one chunk of one layer, so that a caller can stop or do other work in between; one that raised
    cannot be repeated.

    Raises ValueError for a policy that compares scores of different layers, and UnsupportedModelError for a model whose
    layers cannot be run one at a time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        token_ids: Sequence[int],
        policy: Policy,
        *,
        start: KVCache | None = None,
        chunk: int = 256,
        room: int = 0,
        observer: Observer | None = None,
    ) -> None:
        self._layers = separate_layers(model)
        self._tokens = list(token_ids)
        self._parts = in_chunks(self._tokens, chunk)
        self._room = room
        self._start = start
        self._before = 0 if start is None else start.length
        self._cache = KVCache(model.config, device=model.device, dtype=model.dtype)
        self._choice = _Choice(policy, self._held(), len(self._tokens))
        self._hidden: list[Tensor] = []
        self._calls: list[list[LayerCall]] = []
        self._done = 0
        self._logits: Tensor | None = None
        self.observer = Observer(model, max(policy.window, 1), policy.observe) if observer is None else observer

    def step(self) -> bool:
        """Run one chunk through one layer; True when nothing is left. RuntimeError when that was so before."""
        if self._logits is not None:
            raise RuntimeError("the prefill is finished")
        layer, part = divmod(self._done, len(self._parts))
        if part == 0:
            self._begin(layer)
        if layer == 0:
            self._enter(part)
        self._run(layer, part)
        if part == len(self._parts) - 1:
            self._choose(layer)
        self._done += 1
        if self._done == len(self._parts) * len(self._cache.layers):
            self._leave()
        return self._logits is not None

    @property
    def cache(self) -> KVCache:
        """What the policy kept."""
        if self._logits is None:
            raise RuntimeError("the prefill is not finished")
        return self._cache

    @property
    def logits(self) -> Tensor:
        """Logits of the token after the last one [vocab], float32."""
        if self._logits is None:
            raise RuntimeError("the prefill is not finished")
        return self._logits

    def _held(self) -> dict[int, list[int]]:
        """Of every layer with full attention: how many entries its heads will hold before the choice."""
        new = len(self._tokens)
        held = dict(enumerate([new] * heads for heads in self._layers.kv_heads))
        if self._start is not None:
            held = {i: [count + new for count in layer.buffer.counts] for i, layer in enumerate(self._start.layers)}
        return {i: counts for i, counts in held.items() if self._cache.layers[i].sliding_window is None}

    def _enter(self, part: int) -> None:
        """A chunk's input of the first layer, and what each layer is called with for it."""
        hidden, calls = self._layers.enter(self._parts[part], self._before + sum(map(len, self._parts[:part])))
        self._hidden.append(hidden)
        self._calls.append(calls)

    def _begin(self, layer: int) -> None:
        """What came before, and room for the whole prompt unless the layer only keeps a window of it."""
        target = self._cache.layers[layer]
        target.length = self._before
        held = None if self._start is None else self._start.layers[layer].buffer.entries
        more = 0 if target.sliding_window is not None else len(self._tokens)
        if held is not None:
            target.buffer.append(held.to(self._cache.device, self._cache.dtype), room=more)
        else:
            target.buffer.reserve(more)

    def _run(self, layer: int, part: int) -> None:
        new = self._parts[part] if layer == 0 else []  # every token is observed in all layers and counted once
        with self.observer.watching(new, self._cache.length):
            hidden = self._layers.run(layer, self._hidden[part], self._calls[part][layer], self._cache)
        self._hidden[part] = hidden

    def _choose(self, layer: int) -> None:
        """Keep what the policy chooses, in memory of its own."""
        target = self._cache.layers[layer]
        entries = target.buffer.entries
        assert entries is not None
        if target.sliding_window is None:
            entries = self._choice.of(layer, entries, self.observer.observation(target.length).of(layer))
        target.buffer = LayerBuffer()
        target.buffer.append(entries, room=self._room)

    def _leave(self) -> None:
        position = self._cache.length - 1
        self._logits = self._layers.leave(self._hidden[-1][..., -1:, :], self._tokens[-1], position)
        self._hidden, self._calls, self._start = [], [], None


class _Choice:
    """What a policy keeps, from one layer after another."""

    def __init__(self, policy: Policy, held: Mapping[int, Sequence[int]], tokens: int) -> None:
        """held: of every layer that loses entries how many its heads hold, the prefill's `tokens` included."""
        if policy.budget is not None and policy.allocation.compares == "model":
            raise ValueError(
                f"{policy.allocation} compares the scores of all layers: use Prefill and select, or an allocation that"
                " does not, such as Profile"
            )
        self._policy = policy
        self._budget = None if policy.fits(list(held.values())) else policy.budget
        self._counts: dict[int, list[int]] = {}
        if self._budget is not None and policy.allocation.compares == "nothing":
            scores = {i: policy.protect([torch.zeros(n) for n in counts], tokens) for i, counts in held.items()}
            self._counts = policy.allocation.counts(self._budget, scores)

    @torch.no_grad()
    def of(self, layer: int, entries: LayerEntries, observation: LayerObservation) -> LayerEntries:
        """The entries of the layer that stay; a copy when some do not."""
        if self._policy.budget is None:
            choices = self._policy.choose({layer: (entries, observation)})
            return entries.take(choices[layer]) if choices else entries
        if self._budget is None:
            return entries
        scores = self._policy.protected_score(entries, observation)
        counts = (self._counts or self._policy.allocation.counts(self._budget, {layer: scores}))[layer]
        return entries.take(self._policy.pick(entries, observation, scores, counts))
