"""The next token from the logits, by a turn's own random numbers."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How a turn chooses its tokens, and what ends it.

    temperature: 0 takes the most likely token, whatever `top_p` and `seed` are. top_p: draw from the fewest tokens that
    together have this probability; 1 draws from all. seed: the same one draws the same, None draws anew. stop: the
    answer ends before the first of these strings.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class Sampler:
    """Draws the tokens of one turn: one random number for each, so nothing else that runs can change them."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = random.Random(sampling.seed)  # torch's generators use 32 bits of a seed only

    def next(self, logits: Tensor) -> int:
        """A token id from `logits` [vocab]. ValueError when they are no numbers to draw by."""
        if self._sampling.temperature == 0:
            return int(logits.argmax())
        scores = logits.cpu().double()
        largest = scores.max()
        if not largest.isfinite():
            raise ValueError("the model's logits are not finite: run it in another SNAPRAG_DTYPE")
        # the largest becomes 0, so that no temperature is too small to divide by
        probabilities = torch.softmax((scores - largest) / self._sampling.temperature, dim=-1)
        if self._sampling.top_p < 1:
            probabilities = nucleus(probabilities, self._sampling.top_p)
        # In the vocabulary's order: sorted, two tokens of almost one probability could change places between runs.
        sums = probabilities.cumsum(dim=-1)
        drawn = self._random.random() * sums[-1:]
        return int(torch.searchsorted(sums, drawn, right=True))


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """`probabilities` [vocab] with 0 for all but the fewest that together have at least `top_p`.

    https://arxiv.org/abs/1904.09751
    """
    # all that are smaller than this have less than 1 - top_p together: they need no sorting
    likely = (probabilities >= (1 - top_p) / len(probabilities)).nonzero()[:, 0]
    order = likely[probabilities[likely].argsort(descending=True, stable=True)]
    kept = order[: int(torch.searchsorted(probabilities[order].cumsum(dim=-1), top_p)) + 1]
    return torch.zeros_like(probabilities).index_copy_(0, kept, probabilities[kept])
