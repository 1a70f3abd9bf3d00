"""One turn, readable top to bottom: session -> retrieve -> prompt -> prefill -> decode -> commit."""

import threading
import time
import uuid
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field

import structlog

from app.answer import Answer, CitationFound, Compression, Delta, Done, Event, PassagesFound, Timings, Usage
from app.citations import Citation, cite
from app.commit import commit
from app.conversation import DEFAULT_COLLECTION, Conversation, Plan, open_conversation
from app.engine.generation import Finished, Generation, GenerationRequest
from app.engine.sampling import Sampling
from app.engine.text_stream import TextStream
from app.errors import InvalidRequestError, QuestionTooLongError
from app.evidence import gather
from app.services import Services
from app.settings import Settings

log = structlog.get_logger()

NOTHING_FOUND = "I could not find anything about that in the documents."


@dataclass(frozen=True)
class TurnRequest:
    """What a caller asked for, with the defaults filled in."""

    tenant: str
    message: str
    session: bool
    collection: str | None
    top_k: int
    max_tokens: int
    sampling: Sampling
    session_id: str | None = None

    def check(self, settings: Settings) -> None:
        """Raise InvalidRequestError for what exceeds the settings."""
        if len(self.message) > settings.max_question_chars:
            size, limit = len(self.message), settings.max_question_chars
            raise QuestionTooLongError(size, limit, "characters")
        if self.top_k > settings.max_top_k:
            raise InvalidRequestError(f"top_k can be at most {settings.max_top_k}.", "top_k")
        if self.max_tokens > settings.max_max_tokens:
            raise InvalidRequestError(f"max_tokens can be at most {settings.max_max_tokens}.", "max_tokens")


class Turn:
    """One turn of one caller. `run` yields its events; closing that generator, or setting `cancelled`, stops the work
    at the next step and leaves the session at its last committed turn."""

    def __init__(self, services: Services, request: TurnRequest, cancelled: threading.Event) -> None:
        self._services = services
        self._request = request
        self._cancelled = cancelled
        self._clock = _Clock()

    def run(self) -> Generator[Event, None, None]:
        """The events, `Done` the last. Raises the errors of `app.errors` and `retriever.errors`."""
        services, request, clock = self._services, self._request, self._clock
        with services.admission.turn(request.tenant), self._conversation() as conversation:
            evidence = gather(services.retriever, conversation, request.tenant, request.message, request.top_k)
            clock.mark("retrieved")
            plan = conversation.plan(services.prompts, evidence, request.message, request.max_tokens)
            yield PassagesFound(plan.passages, conversation.session_id)

            if not evidence:
                yield Delta(NOTHING_FOUND)
                yield Done(self._commit(conversation, plan, NOTHING_FOUND, (), None, []))
                return

            generation = self._submit(conversation, plan)
            text = TextStream(services.engine.loaded.tokenizer)
            for token in generation.tokens(on_wait=conversation.renew_lease):
                clock.mark("first token")
                if piece := text.push(token):
                    yield Delta(piece)
            finished = generation.finished
            assert finished is not None
            services.break_even.computed(len(plan.sequence) - finished.cached_tokens, finished.prefill_ms / 1000)
            if piece := text.finish(finished.tail):
                yield Delta(piece)

            citations = cite(text.text, [passage.passage() for passage in plan.passages], request.message)
            for citation in citations:
                yield CitationFound(citation)
            generation.check_cancelled()
            yield Done(self._commit(conversation, plan, text.text, text.token_ids, finished, citations))

    def _conversation(self) -> AbstractContextManager[Conversation]:
        request, services = self._request, self._services
        if not request.session:
            collection = request.collection or DEFAULT_COLLECTION
            return nullcontext(Conversation(request.tenant, collection, services.fingerprint))
        return open_conversation(
            services.records, services.fingerprint, request.tenant, request.session_id, request.collection
        )

    def _submit(self, conversation: Conversation, plan: Plan) -> Generation:
        services = self._services
        request = GenerationRequest(
            tenant=self._request.tenant,
            token_ids=plan.sequence,
            max_tokens=self._request.max_tokens,
            sampling=self._request.sampling,
            restore=lambda: conversation.restore(services.store, plan, services.engine.rebuild, services.break_even),
            keep_archive=self._request.session,
        )
        return services.engine.submit(request, self._cancelled)

    def _commit(
        self,
        conversation: Conversation,
        plan: Plan,
        text: str,
        token_ids: Sequence[int],
        finished: Finished | None,
        citations: list[Citation],
    ) -> Answer:
        """Make the turn durable; the answer object. `finished` is None when the model was not asked."""
        settings = self._services.settings
        answer = Answer(
            id=f"ans_{uuid.uuid4().hex}",
            session_id=conversation.session_id,
            turn=conversation.number,
            answer=text,
            answerable=finished is not None,
            finish_reason=finished.reason if finished else "stop",
            citations=citations,
            passages=plan.passages,
            usage=_usage(plan, token_ids, finished),
            timings=self._clock.timings(finished),
            model=settings.model,
            compression=Compression(settings.policy, settings.budget, settings.window, settings.kernel),
            notices=plan.notices,
        )
        answer = commit(self._services, conversation, plan, self._request.message, answer, token_ids, finished)
        self._services.metrics.observe(answer)
        log.info(
            "turn", session_id=answer.session_id, turn=answer.turn, **asdict(answer.usage), **asdict(answer.timings)
        )
        return answer


def _usage(plan: Plan, token_ids: Sequence[int], finished: Finished | None) -> Usage:
    if finished is None:
        return Usage()
    return Usage(len(plan.sequence), finished.cached_tokens, len(token_ids), finished.kept_tokens)


@dataclass
class _Clock:
    """When the stages of a turn were reached, in milliseconds from its start."""

    started: float = field(default_factory=time.perf_counter)
    marks: dict[str, float] = field(default_factory=dict)

    def mark(self, stage: str) -> None:
        """Note the first time that `stage` is reached."""
        self.marks.setdefault(stage, self.now())

    def now(self) -> float:
        return (time.perf_counter() - self.started) * 1000

    def timings(self, finished: Finished | None) -> Timings:
        spans = {"retrieve_ms": self.marks["retrieved"], "total_ms": self.now()}
        if finished is not None:
            spans |= {"queue_ms": finished.queue_ms, "restore_ms": finished.restore_ms}
            spans |= {"prefill_ms": finished.prefill_ms, "decode_ms": finished.decode_ms}
            spans["first_token_ms"] = self.marks.get("first token", 0.0)
        return Timings(**{name: round(value, 1) for name, value in spans.items()})
