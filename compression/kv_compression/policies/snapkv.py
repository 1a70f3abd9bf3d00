"""SnapKV: the last tokens of the prompt vote for what the answer will look at."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from kv_compression.cache import LayerEntries
from kv_compression.policies.base import LayerObservation, Policy


@dataclass(frozen=True)
class SnapKV(Policy):
    """Li et al., SnapKV: LLM Knows What You are Looking for Before Generation, arXiv 2404.14469.

    budget: positions kept per KV head, the window included. window: tokens that vote; a shorter prompt votes with what it
    has. kernel: width of the pooling that keeps neighbours together, in positions, odd. pooling: `avg` or `max`.
    Query heads vote one by one, their pooled votes are averaged over the group: one choice per KV head.
    """

    budget: int
    window: int = 32
    kernel: int = 15
    pooling: Literal["avg", "max"] = "avg"

    def __post_init__(self) -> None:
        if self.window >= self.budget:
            raise ValueError(f"the budget ({self.budget}) must be larger than the window ({self.window})")
        if self.kernel % 2 == 0:
            raise ValueError(f"the kernel ({self.kernel}) must be odd")

    def kept(self, entries: LayerEntries) -> int:
        """The budget."""
        return self.budget

    def score(self, entries: LayerEntries, observation: LayerObservation) -> Tensor:
        """Pooled attention of the window's queries; the window itself must stay."""
        window = min(self.window, observation.window)
        votes = _votes(entries, observation.queries[:, -window:], observation.scaling)
        before = entries.count - window
        pooled = self._pool(votes[:, :before])
        score = pooled.reshape(entries.keys.shape[0], -1, before).mean(dim=1)
        return torch.cat([score, score.new_full((score.shape[0], window), torch.inf)], dim=-1)

    def _pool(self, votes: Tensor) -> Tensor:
        padding = self.kernel // 2
        if self.pooling == "max":
            return max_pool1d(votes, self.kernel, stride=1, padding=padding)
        return avg_pool1d(votes, self.kernel, stride=1, padding=padding)


def _votes(entries: LayerEntries, queries: Tensor, scaling: float) -> Tensor:
    """Attention that each entry gets from the queries [query_heads, window, head_dim], summed: [query_heads, entries].

    The queries belong to the last entries, one each: a query sees nothing behind its own entry.
    """
    kv_heads, count, head_dim = entries.keys.shape
    window = queries.shape[1]
    grouped = queries.reshape(kv_heads, -1, head_dim).float()  # [kv_heads, group * window, head_dim]
    logits = (grouped @ entries.keys.float().transpose(1, 2)) * scaling
    logits = logits.view(kv_heads, -1, window, count)
    ahead = torch.ones(window, window, dtype=torch.bool, device=logits.device).triu(1)
    logits[..., count - window :].masked_fill_(ahead, -torch.inf)
    return logits.softmax(dim=-1).sum(dim=2).view(-1, count)
