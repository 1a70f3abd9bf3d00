"""Several sequences in one forward pass: their new tokens lie one behind another in one row, so nothing is padded."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from kv_compression.adapter import forward_together, recording
from kv_compression.kv_cache import KVCache
from kv_compression.observer import Observer


@dataclass(frozen=True)
class Piece:
    """New tokens of one sequence, to be appended to its cache. The `observer`, if any, watches them."""

    cache: KVCache
    token_ids: Sequence[int]
    observer: Observer | None = None


def run_together(model: PreTrainedModel, pieces: Sequence[Piece]) -> Tensor:
    """Run the pieces, of any lengths, in one pass; the logits after each one [pieces, vocab], float32.

    Every sequence sees what it would see alone: prompts, parts of prompts and tokens of answers go together. ValueError
    for a piece of no tokens, and for two pieces of one cache.
    """
    if not all(piece.token_ids for piece in pieces):
        raise ValueError("a piece has no tokens: leave it out")
    if len({id(piece.cache) for piece in pieces}) < len(pieces):
        raise ValueError("two pieces are of one cache: run them one after the other")
    starts = [piece.cache.length for piece in pieces]
    with recording(*([] if piece.observer is None else piece.observer.recorders for piece in pieces)):
        logits = forward_together(model, [piece.cache for piece in pieces], [piece.token_ids for piece in pieces])
    for piece, start in zip(pieces, starts, strict=True):
        if piece.observer is not None:
            piece.observer.watched(piece.token_ids, start)
    return logits
