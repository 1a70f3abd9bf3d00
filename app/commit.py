"""The end of a turn: the chunks are written (nobody sees them yet), then the turn's row, then the manifest is flipped.

A stop in between leaves a stored cache that is some turns behind its transcript: a valid prefix. Nothing that the
store does can keep a turn from being committed.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

import structlog

from app.answer import Answer
from app.conversation import Conversation, Plan
from app.engine.generation import Finished
from app.services import Services
from app.sessions import CHUNK_BYTES, NewCache, Staged, TurnRecord, token_digest
from kv_compression import Storage, encode_segment

log = structlog.get_logger()


def commit(
    services: Services,
    conversation: Conversation,
    plan: Plan,
    message: str,
    answer: Answer,
    token_ids: Sequence[int],
    finished: Finished | None,
) -> Answer:
    """Make the turn durable; the answer with the bytes that its session's cache now holds.

    Raises ConflictError when the session changed while the turn ran; the turn is then not kept.
    """
    if conversation.lease is None:
        return answer
    staged = _stage(services, conversation, plan, token_ids, finished)
    if staged is not None:
        answer = replace(answer, usage=replace(answer.usage, cache_bytes=staged.head.nbytes))
    try:
        services.records.commit_turn(conversation.lease, _record(message, answer, plan, token_ids))
    except Exception:
        if staged is not None:  # where the session is gone, nobody else would remove them
            services.store.discard(staged)
        raise
    if staged is not None:
        services.store.publish(staged)
    return answer


def _stage(
    services: Services, conversation: Conversation, plan: Plan, token_ids: Sequence[int], finished: Finished | None
) -> Staged | None:
    """Write what later turns need, behind the segments that this turn restored."""
    if finished is None or finished.segment is None or conversation.session is None:
        return None
    try:
        storage = Storage(services.settings.archive_format)
        chunks = encode_segment(finished.segment, services.fingerprint, CHUNK_BYTES, storage=storage)
    except ValueError as error:  # numbers that this format cannot hold
        log.warning("kv_not_stored", reason=str(error))
        return None
    sequence = [*plan.sequence, *token_ids]
    stored = conversation.stored
    keeps = stored is not None and finished.cached_tokens > 0 and not finished.replaces
    new = NewCache(
        generation=conversation.number,
        expected_generation=stored.generation if stored is not None else 0,
        fingerprint=services.fingerprint,
        tokens=len(sequence),
        token_digest=token_digest(sequence),
        chunks=chunks,
        kept=stored.segments if stored is not None and keeps else (),
    )
    return services.store.stage(conversation.tenant, conversation.session.session_id, new)


def _record(message: str, answer: Answer, plan: Plan, token_ids: Sequence[int]) -> TurnRecord:
    return TurnRecord(
        number=answer.turn,
        answer_id=answer.id,
        message=message,
        answer=answer.answer,
        answerable=answer.answerable,
        finish_reason=answer.finish_reason,
        citations=[asdict(citation) for citation in answer.citations],
        passages=[asdict(passage) for passage in answer.passages],
        usage=asdict(answer.usage),
        timings=asdict(answer.timings),
        model=answer.model,
        compression=asdict(answer.compression),
        notices=answer.notices,
        token_ids=[*plan.appended, *token_ids],
        starts_over=plan.starts_over,
    )
