"""FastGen: for every head the cheapest kind of cache that recovers most of its attention."""

import unicodedata
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kv_compression.allocation import HeadAdaptive
from kv_compression.cache import HeadEntries, LayerEntries
from kv_compression.observation import LayerObservation
from kv_compression.policies.base import Policy
from kv_compression.weights import attention_weights

KINDS = SPECIAL, PUNCTUATION, FREQUENT, LOCAL, OTHER = 4, 3, 2, 1, 0
"""The kinds of entries. A head keeps all kinds down to one of them; down to the last, it keeps everything."""


@dataclass(frozen=True)
class FastGen(Policy):
    """Ge et al., Model Tells You What to Discard: Adaptive KV Cache Compression for LLMs,
    https://arxiv.org/abs/2310.01801. A head keeps its special tokens; if these do not recover enough of its attention,
    its punctuation, too; then the entries that were looked at most; then the latest ones; then everything.

    budget: None, or the positions kept per KV head on average at most: `recovery` is lowered until that holds (the
    special tokens stay in any case). recovery: the part of the attention that a head must keep. special, punctuation:
    token ids; `for_tokenizer` finds them. frequent, local: fractions of the entries. window: the tokens whose attention
    is measured, averaged over the group; the paper takes all, but what is local to them is not what is kept. All tokens
    must have been observed: a follow-up goes on with the observer of the prefill before.
    """

    name: ClassVar[str] = "fastgen"
    observe = ("sums",)
    allocation = HeadAdaptive("model", floor=0.0)  # says what a budget means here: all heads compete for it
    budget: int | None = None
    recovery: float = 0.95
    special: tuple[int, ...] = ()
    punctuation: tuple[int, ...] = ()
    frequent: float = 0.3
    local: float = 0.3
    window: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= part <= 1 for part in (self.recovery, self.frequent, self.local)):
            raise ValueError("recovery, frequent and local must be from 0 to 1")
        if self.window < 1:
            raise ValueError(f"the window ({self.window}) must be at least 1")

    @classmethod
    def for_tokenizer(
        cls, tokenizer: PreTrainedTokenizerBase, *, budget: int | None = None, recovery: float = 0.95
    ) -> "FastGen":
        """With the special tokens and the punctuation of this tokenizer."""
        special = tuple(sorted(tokenizer.all_special_ids))
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        punctuation = tuple(token for token, text in enumerate(texts) if _is_punctuation(text))
        return cls(budget, recovery, special, punctuation)

    def score(self, entries: LayerEntries, observation: LayerObservation) -> list[Tensor]:
        """The kind of every entry. ValueError when sums, or the ids of some of the tokens, were not observed."""
        if observation.sums is None:
            raise ValueError("FastGen needs attention sums: give the prefill observe=policy.observe")
        if bool((observation.token_ids < 0).any()):
            raise ValueError("FastGen needs the ids of all tokens: give the prefill the observer of the one before it")
        ids = observation.token_ids.to(entries.positions.device)
        return [self._kinds(head, sums, ids) for head, sums in zip(entries, observation.sums, strict=True)]

    def choose(self, layers: Mapping[int, tuple[LayerEntries, LayerObservation]]) -> dict[int, list[Tensor]]:
        """For every layer that loses entries, by its index: of every KV head the indices of what stays, ascending."""
        if self.budget is not None and self.fits([entries.counts for entries, _ in layers.values()]):
            return {}
        kinds = {layer: self.score(*held) for layer, held in layers.items()}
        recovered = torch.cat([self._recovered(kinds[layer], *held) for layer, held in layers.items()])
        counts = torch.stack([_counts(head) for of_layer in kinds.values() for head in of_layer])
        levels = iter(_levels(recovered, counts, self.recovery, self.budget))
        chosen = {layer: [head >= KINDS[next(levels)] for head in of_layer] for layer, of_layer in kinds.items()}
        return {
            layer: [head.nonzero()[:, 0] for head in heads]
            for layer, heads in chosen.items()
            if not all(bool(head.all()) for head in heads)
        }

    def _kinds(self, head: HeadEntries, sums: Tensor, token_ids: Tensor) -> Tensor:
        """[entries], from the ids and the sums [positions]."""
        positions = head.positions.long()
        ids, count = token_ids[positions], len(positions)
        kinds = torch.full((count,), OTHER, device=ids.device)
        kinds[count - round(count * self.local) :] = LOCAL
        kinds[sums[positions].topk(round(count * self.frequent)).indices] = FREQUENT
        kinds[torch.isin(ids, torch.tensor(self.punctuation, device=ids.device))] = PUNCTUATION
        kinds[torch.isin(ids, torch.tensor(self.special, device=ids.device))] = SPECIAL
        return kinds

    def _recovered(self, kinds: list[Tensor], entries: LayerEntries, observation: LayerObservation) -> Tensor:
        """[kv_heads, kinds]: the part of the window's attention that is kept with all kinds down to each."""
        seen = observation.last(self.window)
        groups = zip(seen.queries.chunk(len(kinds)), entries, kinds, strict=True)
        parts = []
        for queries, head, of_head in groups:
            weights = attention_weights(queries, head.keys, seen.scaling, seen.softcap).mean(dim=(0, 1))
            parts.append(weights.new_zeros(len(KINDS)).index_add_(0, KINDS[0] - of_head, weights).cumsum(dim=0))
        return torch.stack(parts)


def _counts(kinds: Tensor) -> Tensor:
    """[kinds]: how many entries a head keeps with all kinds down to each."""
    return torch.bincount(KINDS[0] - kinds, minlength=len(KINDS)).cumsum(dim=0)


def _levels(recovered: Tensor, counts: Tensor, recovery: float, budget: int | None) -> list[int]:
    """For every head the first of the kinds [heads, kinds] that recovers enough, or as much as the budget allows."""

    def levels(enough: float) -> Tensor:
        return (recovered[:, :-1] < enough).sum(dim=1)  # everything is always enough

    def kept(enough: float) -> int:
        return int(counts.gather(1, levels(enough)[:, None]).sum())

    if budget is not None:
        possible = sorted({0.0, recovery, *recovered[recovered < recovery].tolist()})
        recovery = possible[max(bisect_right(possible, budget * len(counts), key=kept) - 1, 0)]
    found: list[int] = levels(recovery).tolist()
    return found


def _is_punctuation(text: str) -> bool:
    return bool(text.strip()) and all(unicodedata.category(sign)[0] == "P" for sign in text.strip())
