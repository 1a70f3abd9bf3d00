"""Which passages a turn may use. Decided anew at every turn, whatever earlier turns found."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from app.answer import AnswerPassage
from app.conversation import Conversation
from retriever import Hit, Retriever, content_words

# "why?", "and the second one?": with so few words of its own, a message means what the one before it was about
ELLIPTIC_WORDS = 3
CANDIDATES = 50  # of one search, before two are put together
ALONE_WEIGHT = 0.5  # docs/experiments.md has the figures


def gather(
    retriever: Retriever, conversation: Conversation, tenant: str, message: str, top_k: int
) -> list[AnswerPassage]:
    """The passages for `message`, best first, then those that the last answer cited; [] when nothing was found.

    The query is the last two user messages together, so that "yes" finds what it says yes to. A message that has enough
    words to stand alone must find something alone: an earlier subject is no evidence for a new one.
    """
    collection = conversation.collection
    alone = hits = retriever.search(tenant, collection, message, CANDIDATES)
    for previous in _subject(message, conversation.messages, found=bool(hits)):
        # the message first: an embedder cuts what is too long at its end. When the subject has changed, both together
        # may be about nothing; the message alone then stands
        if both := retriever.search(tenant, collection, f"{message}\n{previous}", CANDIDATES):
            hits = _together(both, alone)
            break
    if not hits:
        return []
    found = [_passage(hit, conversation) for hit in hits[:top_k]]
    return found + _carried(conversation.cited_last, found)


def _together(both: Sequence[Hit], alone: Sequence[Hit]) -> list[Hit]:
    """What two messages find, best first; what the last one finds alone counts once more, in part."""
    more = {hit.passage.passage_id: ALONE_WEIGHT * hit.score for hit in alone}
    hits = [replace(hit, score=hit.score + more.get(hit.passage.passage_id, 0.0)) for hit in both]
    return sorted(hits, key=lambda hit: -hit.score)


def _subject(message: str, before: Sequence[str], *, found: bool) -> Iterator[str]:
    """The messages that may say what this one is about: the one before, and while that one is elliptic, too, others."""
    if not found and not _is_elliptic(message):
        return
    for previous in before:
        yield previous
        if found or not _is_elliptic(previous):
            return


def _is_elliptic(message: str) -> bool:
    return len(content_words(message)) <= ELLIPTIC_WORDS


def _carried(cited: Sequence[AnswerPassage], found: Sequence[AnswerPassage]) -> list[AnswerPassage]:
    known = {passage.passage_id for passage in found}
    return [passage for passage in cited if passage.passage_id not in known]


def _passage(hit: Hit, conversation: Conversation) -> AnswerPassage:
    passage = hit.passage
    return AnswerPassage(
        passage_id=passage.passage_id,
        document_id=passage.document_id,
        title=passage.title,
        page=passage.page,
        start=passage.start,
        end=passage.end,
        text=passage.text,
        score=round(hit.score, 4),
        in_session=passage.passage_id in conversation.held,
    )
