"""ExpectedAttention: what the queries to come will look at, if they are like those of the prompt."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from kv_compression.allocation import Allocation, Uniform
from kv_compression.cache import HeadEntries, LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy


@dataclass(frozen=True)
class ExpectedAttention(Policy):
    """Devoto et al., Expected Attention: KV Cache Compression by Estimating Attention from Future Queries Distribution,
    https://arxiv.org/abs/2510.00636. It knows no question: the queries to come are taken to be normally distributed,
    with the mean and covariance of the prompt's, at the mean of the next positions.

    budget: positions kept per KV head. sinks: first entries that always stay. future: positions ahead that are averaged
    over. allocation: how the budget is divided among the heads.
    """

    name: ClassVar[str] = "expected_attention"
    observe = ("statistics",)
    budget: int
    sinks: int = 4
    future: int = 512
    allocation: Allocation = Uniform()

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """The expected weight, with the sinks set apart, times the length of the value. A soft cap is left out, as in
        the paper. ValueError for an observation without statistics."""
        if observation.statistics is None:
            raise ValueError("ExpectedAttention needs statistics: give the prefill observe=policy.observe")
        heads, scale = len(entries.counts), observation.scaling
        mean, covariance = observation.statistics.ahead(self.future)
        groups = zip((mean * scale).chunk(heads), (covariance * scale**2 / 2).chunk(heads), entries, strict=True)
        return [_expected(*group, self.sinks) for group in groups]


def _expected(mean: Tensor, covariance: Tensor, head: HeadEntries, sinks: int) -> Tensor:
    """[entries], 0 for the sinks. Of a group: mean [group, head_dim] and half its covariance, scaled
    [group, head_dim, head_dim]."""
    keys, values = head.keys[sinks:].float(), head.values[sinks:].float()
    logits = mean @ keys.T + torch.einsum("ed,gde->ge", keys, covariance @ keys.T)
    expected = logits.softmax(dim=-1).mean(dim=0) * values.norm(dim=-1)
    return pad(expected, (len(head.keys) - len(keys), 0))
