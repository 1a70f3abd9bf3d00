"""KeyDiff: entries whose keys differ most from the others."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import normalize

from kv_compression.allocation import Allocation, Uniform
from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy


@dataclass(frozen=True)
class KeyDiff(Policy):
    """Park et al., KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference,
    https://arxiv.org/abs/2504.15364. It knows no question.

    budget: positions kept per KV head. allocation: how it is divided among the heads.
    """

    name: ClassVar[str] = "keydiff"
    budget: int
    allocation: Allocation = Uniform()

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """Minus the cosine between a key and the mean of all normalized keys."""
        directions = [normalize(head.keys.float(), dim=-1) for head in entries]
        return [-(keys @ normalize(keys.mean(dim=0), dim=0)) for keys in directions]
