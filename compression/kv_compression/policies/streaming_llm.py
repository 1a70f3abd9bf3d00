"""StreamingLLM: the first tokens and the last ones."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kv_compression.allocation import Allocation, Uniform
from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy


@dataclass(frozen=True)
class StreamingLLM(Policy):
    """Xiao et al., Efficient Streaming Language Models with Attention Sinks, https://arxiv.org/abs/2309.17453.

    budget: positions kept per KV head, the sinks included. sinks: first entries that always stay. The paper numbers the
    kept positions anew; here they keep their true ones, as with every policy.
    """

    name: ClassVar[str] = "streaming_llm"
    budget: int
    sinks: int = 4
    allocation: Allocation = Uniform()

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """The later the better."""
        return [head.positions.float() for head in entries]
