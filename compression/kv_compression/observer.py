"""Observing a running model for the policies: the recorders, and the observation that they make together."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from kv_compression.adapter import recording, rotation_of
from kv_compression.observation import Observation, Observed
from kv_compression.recorders import QueryRecorder, Recorder, StatisticsRecorder, SumRecorder


class Observer:
    """Watches the tokens that run through `model` within `watching`.

    window: how many of the last queries are kept. observe: what else is, by a policy's `observe`.
    """

    def __init__(self, model: PreTrainedModel, window: int, observe: Collection[Observed] = ()) -> None:
        self._queries = QueryRecorder(window)
        self._statistics = StatisticsRecorder(rotation_of(model)) if "statistics" in observe else None
        self._sums = SumRecorder() if "sums" in observe else None
        self._token_ids: list[int] = []  # by position, -1 where nothing was watched

    @property
    def recorders(self) -> list[Recorder]:
        """What is to be told of the tokens' attention."""
        return [recorder for recorder in (self._queries, self._statistics, self._sums) if recorder is not None]

    @contextmanager
    def watching(self, token_ids: Sequence[int], position: int) -> Iterator[None]:
        """For a forward of these tokens from `position` on."""
        with recording(self.recorders):
            yield
        self.watched(token_ids, position)

    def watched(self, token_ids: Sequence[int], position: int) -> None:
        """The recorders have seen these tokens, from `position` on."""
        self._token_ids += [-1] * (position - len(self._token_ids)) + list(token_ids)

    def observation(self, length: int) -> Observation:
        """Of all that was watched, which ended at the true length `length`."""
        statistics = {} if self._statistics is None else self._statistics.layers
        sums = {} if self._sums is None else self._sums.layers
        ids = torch.tensor(self._token_ids)
        layers = {
            layer: replace(seen, statistics=statistics.get(layer), sums=sums.get(layer), token_ids=ids)
            for layer, seen in self._queries.layers.items()
        }
        return Observation(layers, self._queries.window, int((ids >= 0).sum()), length)
