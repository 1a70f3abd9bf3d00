"""What a turn knows of its session: the transcript, the token sequence that it stands for, and the stored cache.

The transcript is the truth. The stored cache is used only when it covers a prefix of exactly this sequence.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from app.answer import AnswerPassage
from app.break_even import BreakEven
from app.errors import SessionNotFoundError, UnknownCollectionError
from app.prompt import Exchange, PromptBuilder
from app.sessions import (
    FrameError,
    KVStore,
    Lease,
    Session,
    SessionRecords,
    StoredHead,
    TurnRecord,
    token_digest,
)
from kv_compression import KVCache, KVCompressionError

LEASE_S = 60.0
DEFAULT_COLLECTION = "default"

# the chunks of every segment, their fingerprint, the tokens that they cover, room for more tokens -> the cache
Rebuild = Callable[[Iterable[Iterable[memoryview]], str, int, int], KVCache]


@dataclass(frozen=True)
class Plan:
    """A turn's prompt: `sequence` is all tokens of the context, `appended` those that this turn adds to its end."""

    sequence: list[int]
    appended: list[int]
    passages: list[AnswerPassage]
    notices: list[str]
    starts_over: bool


@dataclass
class Conversation:
    """The session of one turn while that turn holds its lease; empty for a question without a session."""

    tenant: str
    collection: str
    fingerprint: str
    session: Session | None = None
    lease: Lease | None = None
    turns: Sequence[TurnRecord] = ()
    sequence: Sequence[int] = ()
    stored: StoredHead | None = None
    _renewed_at: float = field(default_factory=time.monotonic)

    @property
    def session_id(self) -> str | None:
        """None for a question without a session."""
        return self.session.session_id if self.session else None

    @property
    def number(self) -> int:
        """This turn's number, from 1."""
        return len(self.turns) + 1

    @property
    def messages(self) -> list[str]:
        """The user's messages before this one, the latest first."""
        return [turn.message for turn in reversed(self.turns)]

    @property
    def held(self) -> frozenset[str]:
        """Ids of the passages whose text is in the sequence."""
        return frozenset(passage["passage_id"] for turn in self._current() for passage in turn.passages)

    @property
    def cited_last(self) -> list[AnswerPassage]:
        """Passages in the sequence that the last answer cited."""
        if not self.sequence:
            return []
        last = self.turns[-1]
        cited = {source["passage_id"] for citation in last.citations for source in citation["sources"]}
        return [
            AnswerPassage(**{**passage, "in_session": True})
            for passage in last.passages
            if passage["passage_id"] in cited
        ]

    def renew_lease(self) -> None:
        """Keep the lease while the turn works; cheap to call often."""
        if self.lease and time.monotonic() - self._renewed_at > LEASE_S / 4:
            self.lease.renew()
            self._renewed_at = time.monotonic()

    def plan(self, builder: PromptBuilder, evidence: Sequence[AnswerPassage], message: str, max_tokens: int) -> Plan:
        """Go on from the sequence when everything fits, else start over from the last exchanges.

        Without evidence the model is not asked and the sequence stays as it is. Raises QuestionTooLongError.
        """
        if not evidence:
            return Plan(list(self.sequence), [], [], [], starts_over=False)
        if self.sequence:
            new = [passage.passage() for passage in evidence if not passage.in_session]
            prompt = builder.extend(len(self.sequence), new, message, max_tokens)
            if prompt is not None:
                sequence = [*self.sequence, *prompt.token_ids]
                return Plan(sequence, prompt.token_ids, list(evidence), [], starts_over=False)
        history = [Exchange(turn.message, turn.answer) for turn in self.turns if turn.answerable]
        prompt = builder.begin([passage.passage() for passage in evidence], message, max_tokens, history)
        used = {passage.passage_id for passage in prompt.passages}
        passages = [replace(passage, in_session=False) for passage in evidence if passage.passage_id in used]
        notices = self._notices(prompt.left_out, len(evidence))
        return Plan(prompt.token_ids, prompt.token_ids, passages, notices, starts_over=True)

    def restore(self, store: KVStore, plan: Plan, rebuild: Rebuild, break_even: BreakEven) -> KVCache | None:
        """The cache of the sequence before this turn; None unless what is stored matches it token for token, and is
        sooner restored than computed."""
        if self.session is None:
            return None

        def use(head: StoredHead, segments: Iterator[Iterator[memoryview]]) -> tuple[StoredHead, KVCache | None]:
            covered = self.sequence[: head.tokens]
            if plan.starts_over or len(covered) != head.tokens or token_digest(covered) != head.token_digest:
                return head, None
            if not break_even.worth_restoring(head.tokens):
                return head, None
            started = time.perf_counter()
            try:
                cache = rebuild(segments, self.fingerprint, head.tokens, len(plan.sequence) - head.tokens)
            except KVCompressionError as error:
                raise FrameError(str(error)) from error
            break_even.restored(head.tokens, time.perf_counter() - started)
            return head, cache

        found = store.load(self.tenant, self.session.session_id, self.fingerprint, use)
        if found is None:
            return None
        self.stored, cache = found
        return cache

    def _current(self) -> Sequence[TurnRecord]:
        """The turns whose tokens make the sequence."""
        if not self.sequence:
            return ()
        first = max((i for i, turn in enumerate(self.turns) if turn.starts_over), default=0)
        return self.turns[first:]

    def _notices(self, left_out: int, found: int) -> list[str]:
        notices = []
        if self.sequence:
            notices.append(
                "The conversation outgrew the model's context: this answer goes on from the last turns "
                "and the passages found for it."
            )
        if left_out:
            notices.append(f"{left_out} of {found} passages were left out: they did not fit the model's context.")
        return notices


@contextmanager
def open_conversation(
    records: SessionRecords, fingerprint: str, tenant: str, session_id: str | None, collection: str | None
) -> Iterator[Conversation]:
    """The conversation of a session, a new one when `session_id` is None, its lease held until the end.

    A new session that gets no turn leaves nothing behind. Raises SessionNotFoundError, SessionBusyError and
    UnknownCollectionError.
    """
    new = session_id is None
    if session_id is None:
        session = records.create(tenant, collection or DEFAULT_COLLECTION)
    else:
        session = records.get(tenant, session_id)
        if collection not in (None, session.collection):
            raise UnknownCollectionError(str(collection), session.collection)
    try:
        with records.lease(tenant, session.session_id, LEASE_S) as lease:
            turns = records.turns(tenant, session.session_id)
            sequence = records.sequence(tenant, session.session_id)
            yield Conversation(tenant, session.collection, fingerprint, session, lease, turns, sequence)
    finally:
        if new:
            with suppress(SessionNotFoundError):  # somebody deleted it while its first turn ran
                if records.get(tenant, session.session_id).turns == 0:
                    records.delete(tenant, session.session_id)
