"""KVzip: what the model looks at when it repeats the text."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kv_compression.allocation import Allocation, HeadAdaptive
from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy


@dataclass(frozen=True)
class KVzip(Policy):
    """Kim et al., KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction,
    https://arxiv.org/abs/2505.23416. It knows no question, and takes the observation that `reconstruct` makes.

    budget: positions kept per KV head on average. sinks: first entries that always stay. allocation: the paper lets
    all heads of all layers compete.
    """

    name: ClassVar[str] = "kvzip"
    budget: int
    sinks: int = 4
    allocation: Allocation = HeadAdaptive("model", floor=0.0)

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """The largest weight that any repeated token gave. ValueError for another observation."""
        if observation.importance is None:
            raise ValueError("KVzip chooses by a reconstruction: make its observation with reconstruct()")
        return list(observation.importance.clone())
