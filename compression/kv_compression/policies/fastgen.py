"""FastGen: for every head the cheapest kind of cache that recovers most of its attention."""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kv_compression.cache import HeadEntries, LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy
from kv_compression.weights import attention_weights


@dataclass(frozen=True)
class FastGen(Policy):
    """Ge et al., Model Tells You What to Discard: Adaptive KV Cache Compression for LLMs,
    https://arxiv.org/abs/2310.01801. A head keeps its special tokens; if these do not recover the attention that the
    observation window gives, its punctuation, too; then the most frequently attended entries; then the latest; then
    everything. There is no budget: the model tells.

    special, punctuation: token ids; `for_tokenizer` finds them. recovery: the part of the attention that must stay.
    frequent, local: fractions of the entries. The window's attention is averaged over the group.
    """

    name: ClassVar[str] = "fastgen"
    budget = None
    special: tuple[int, ...] = ()
    punctuation: tuple[int, ...] = ()
    recovery: float = 0.95
    frequent: float = 0.3
    local: float = 0.3
    window: int = 32

    def __post_init__(self) -> None:
        if not all(0 <= part <= 1 for part in (self.recovery, self.frequent, self.local)):
            raise ValueError("recovery, frequent and local must be from 0 to 1")

    @classmethod
    def for_tokenizer(cls, tokenizer: PreTrainedTokenizerBase, recovery: float = 0.95) -> "FastGen":
        """With the special tokens and the punctuation of this tokenizer."""
        special = tuple(sorted(tokenizer.all_special_ids))
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        punctuation = tuple(token for token, text in enumerate(texts) if _is_punctuation(text))
        return cls(special, punctuation, recovery)

    def choose(self, layers: Mapping[int, tuple[LayerEntries, LayerObservation]]) -> dict[int, list[Tensor]]:
        """For every layer, of every KV head the indices of what stays, ascending."""
        return {layer: self._kept(entries, observation) for layer, (entries, observation) in layers.items()}

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """The attention that the window gives, [entries] for every KV head."""
        seen = observation.last(self.window)
        return [
            attention_weights(queries, head.keys, seen.scaling, seen.softcap).mean(dim=(0, 1))
            for queries, head in zip(seen.queries.chunk(len(entries.counts)), entries, strict=True)
        ]

    def _kept(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        weights = self.score(entries, observation)
        return [self._cheapest(*of_head, observation) for of_head in zip(weights, entries, strict=True)]

    def _cheapest(self, weights: Tensor, head: HeadEntries, observation: LayerObservation) -> Tensor:
        count = len(weights)
        tokens = observation.token_ids.to(weights.device)[head.positions.long()]
        kept = torch.isin(tokens, torch.tensor(self.special, device=weights.device))
        kept[-1] = True  # the last token's own entry
        frequent, local = torch.zeros_like(kept), torch.zeros_like(kept)
        frequent[weights.topk(round(count * self.frequent)).indices] = True
        local[count - round(count * self.local) :] = True
        for more in (torch.isin(tokens, torch.tensor(self.punctuation, device=weights.device)), frequent, local):
            if weights[kept].sum() >= self.recovery:
                break
            kept |= more
        enough = bool(weights[kept].sum() >= self.recovery)
        return kept.nonzero()[:, 0] if enough else torch.arange(count, device=weights.device)


def _is_punctuation(text: str) -> bool:
    return bool(text.strip()) and all(unicodedata.category(sign)[0] == "P" for sign in text.strip())
