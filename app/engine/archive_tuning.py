"""Which archive is good enough for a model: what different ones lose when the model reads on from them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import torch
from torch.nn.functional import cross_entropy

from app.engine.archive import Archive
from app.engine.loading import LoadedModel
from kv_compression import Allocation, KVCache, Prefill, Storage, decode_segment, encode_segment
from kv_compression.adapter import forward

KEEPS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
FORMATS = ("int4", "bfloat16")
TAIL = 128
"""Tokens at the end of each text that are read on."""
TOLERANCE = 0.01
"""Of the negative log-likelihood: an archive that costs no more is good enough."""


@dataclass(frozen=True)
class Tried:
    """An archive by ExpectedAttention: the fraction of positions kept and the format; loss: how much worse the model
    predicts the end of the texts than from the full cache, as a fraction; size: bytes as a part of the full cache's in
    bfloat16."""

    keep: float
    format: str
    loss: float
    size: float


def try_archives(loaded: LoadedModel, texts: Sequence[Sequence[int]], allocation: Allocation) -> list[Tried]:
    """Every combination of `KEEPS` and `FORMATS`, the smallest first. texts: token ids, each longer than `TAIL`."""
    by_text = [dict(_losses(loaded, list(text), allocation)) for text in texts]
    full = fmean(losses[None][0] for losses in by_text)
    tried = [
        Tried(*how, fmean(losses[how][0] for losses in by_text) / full - 1, fmean(losses[how][1] for losses in by_text))
        for how in product(KEEPS, FORMATS)
    ]
    return sorted(tried, key=lambda one: one.size)


def good_enough(tried: Sequence[Tried]) -> Tried | None:
    """The smallest that loses no more than `TOLERANCE`; None when all do."""
    return next((one for one in tried if one.loss <= TOLERANCE), None)


@torch.inference_mode()
def _losses(
    loaded: LoadedModel, text: list[int], allocation: Allocation
) -> Iterator[tuple[tuple[float, str] | None, tuple[float, float]]]:
    """Of the full cache (None) and of every archive: the loss, and the size."""
    head, tail, model = text[:-TAIL], text[-TAIL:], loaded.model
    cache = KVCache(model.config, device=model.device, dtype=model.dtype)
    archives = {keep: Archive("expected_attention", keep, allocation) for keep in KEEPS}
    run = Prefill(model, cache, head, observe=archives[KEEPS[0]].policy(len(head)).observe)
    while not run.step():
        pass
    whole = sum(map(len, encode_segment(cache.segment(0), "", storage=Storage("bfloat16"))))
    yield None, (_loss(loaded, cache.copy(room=TAIL), tail), 1.0)
    for keep, archive in archives.items():
        kept = archive.choose(cache, run.observation, 0).segment(0)
        for name in FORMATS:
            chunks = encode_segment(kept, "", storage=Storage(name))
            read = decode_segment(chunks, "")
            again = KVCache.from_segments(model.config, [read], device=model.device, dtype=model.dtype, room=TAIL)
            yield (keep, name), (_loss(loaded, again, tail), sum(map(len, chunks)) / whole)


def _loss(loaded: LoadedModel, cache: KVCache, tail: Sequence[int]) -> float:
    """The mean negative log-likelihood of a token behind the first one of `tail`, which are all added to the cache."""
    logits = forward(loaded.model, cache, tail, keep=len(tail))[:-1]
    return float(cross_entropy(logits, torch.tensor(tail[1:], device=logits.device)))
