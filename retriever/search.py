"""One search: both legs, fused, and what of it is about the query at all."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from retriever import lexical, store
from retriever.fuse import fuse
from retriever.index import VectorIndex
from retriever.model import Hit

CANDIDATES = 50  # of each leg, before they are fused

# A passage's evidence: its cosine, and half the share of the query's content words that it holds. Measured on questions
# about the collection and about something else; docs/retrieval.md has the figures.
COVERAGE_WEIGHT = 0.5
MIN_EVIDENCE = 0.45  # of the best hit: below, the collection is not about the query
MIN_HIT_EVIDENCE = 0.30  # of any hit: below, it only fills the list


def candidates(
    connection: Connection,
    index: VectorIndex,
    tenant: str,
    collection: str,
    query: str,
    vector: NDArray[np.float32],
) -> list[Hit]:
    """What either leg finds for `query`, whose vector [dimension] is given, best first."""
    words = lexical.content_words(query)
    near = index.search(vector, CANDIDATES)
    by_words = lexical.search(connection, tenant, collection, words, CANDIDATES)
    lone = {number: index.similarity(vector, number) for number in by_words if number not in near}
    similarities = near | lone
    ranked = fuse(by_words, similarities)
    found = store.passages_by_number(connection, tenant, [number for number, _ in ranked])
    hits = []
    for number, score in ranked:
        if number in found:
            similarity = similarities[number]
            evidence = similarity + COVERAGE_WEIGHT * lexical.coverage(words, found[number].text)
            hits.append(Hit(found[number], score, similarity, evidence))
    return hits


def supported(hits: Sequence[Hit]) -> list[Hit]:
    """The hits that are about the query, copies last; [] when none has the evidence that the collection is."""
    if best_evidence(hits) < MIN_EVIDENCE:
        return []
    return _repeats_last([hit for hit in hits if hit.evidence >= MIN_HIT_EVIDENCE])


def best_evidence(hits: Sequence[Hit]) -> float:
    """How sure it is that the collection is about the query at all."""
    return max((hit.evidence for hit in hits), default=0.0)


def _repeats_last(hits: Sequence[Hit]) -> list[Hit]:
    """A text that stands in several documents, or twice in one, takes one place before all others have theirs."""
    first: dict[str, Hit] = {}
    repeated = []
    for hit in hits:
        if first.setdefault(" ".join(hit.passage.text.split()), hit) is not hit:
            repeated.append(hit)
    return [*first.values(), *repeated]
