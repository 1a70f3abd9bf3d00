"""SnapKV: the last tokens of the prompt vote for what the answer will look at."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d, pad

from kv_compression.allocation import Allocation, Uniform
from kv_compression.cache import LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy
from kv_compression.weights import attention_weights


@dataclass(frozen=True)
class SnapKV(Policy):
    """Li et al., SnapKV: LLM Knows What You are Looking for Before Generation, https://arxiv.org/abs/2404.14469.

    budget: positions kept per KV head, the window included. window: tokens that vote and always stay; a shorter prompt
    votes with what it has. kernel: width of the pooling that keeps neighbours together, in positions, odd. pooling:
    `avg` or `max`. allocation: how the budget is divided among the heads. Query heads vote one by one, their pooled
    votes are averaged over the group: one choice per KV head.
    """

    name: ClassVar[str] = "snapkv"
    budget: int
    window: int = 32
    kernel: int = 15
    pooling: Literal["avg", "max"] = "avg"
    allocation: Allocation = Uniform()

    def __post_init__(self) -> None:
        if not 1 <= self.window < self.budget:
            raise ValueError(f"the budget ({self.budget}) must be larger than the window ({self.window})")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"the kernel ({self.kernel}) must be odd and at least 1")
        if self.pooling not in ("avg", "max"):
            raise ValueError(f"the pooling ({self.pooling!r}) must be 'avg' or 'max'")

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """Mean pooled attention of the window's queries, float32. One KV head at a time, to bound the memory."""
        seen = observation.last(self.window)
        groups = seen.queries.chunk(len(entries.counts))  # of every KV head [group, window, head_dim]
        return [self._vote(queries, head.keys, seen) for queries, head in zip(groups, entries, strict=True)]

    def _vote(self, queries: Tensor, keys: Tensor, seen: LayerObservation) -> Tensor:
        """[entries], from a group's queries [group, window, head_dim] and its KV head's keys [entries, head_dim]."""
        weights = attention_weights(queries, keys, seen.scaling, seen.softcap)
        votes = pad(weights.mean(dim=1)[:, : -seen.window], (0, seen.window))  # the window does not vote for itself
        pool = avg_pool1d if self.pooling == "avg" else max_pool1d
        pooled: Tensor = pool(votes, self.kernel, stride=1, padding=self.kernel // 2)
        return pooled.mean(dim=0)
