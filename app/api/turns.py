"""`/ask` and `/chat`: one turn, whole or as a stream of server-sent events."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncGenerator, Generator
from dataclasses import asdict
from typing import Any

import anyio
from fastapi import APIRouter, Request
from fastapi.concurrency import iterate_in_threadpool, run_in_threadpool
from fastapi.responses import JSONResponse, Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message

from app.answer import Answer, CitationFound, Delta, Done, Event, PassagesFound
from app.api.deps import ServicesDep, TenantDep
from app.api.failures import describe
from app.api.schemas import AskRequest, ChatRequest
from app.engine.sampling import Sampling
from app.errors import TurnCancelledError
from app.services import Services
from app.turn import Turn, TurnRequest

router = APIRouter(tags=["turns"])

DISCONNECT_POLL_S = 0.05


@router.post("/ask", response_model=None)
async def ask(body: AskRequest, request: Request, tenant: TenantDep, services: ServicesDep) -> Response:
    """Answer a question without a session."""
    turn = _request(body, tenant, services, message=body.question, session=False)
    return await _answer(request, services, turn, body.stream)


@router.post("/chat", response_model=None)
async def chat(body: ChatRequest, request: Request, tenant: TenantDep, services: ServicesDep) -> Response:
    """One turn of a session; without `session_id` a session is made."""
    turn = _request(body, tenant, services, message=body.message, session=True, session_id=body.session_id)
    return await _answer(request, services, turn, body.stream)


def _request(body: AskRequest | ChatRequest, tenant: str, services: Services, **rest: Any) -> TurnRequest:
    request = TurnRequest(
        tenant=tenant,
        collection=body.collection,
        top_k=services.settings.top_k if body.top_k is None else body.top_k,
        max_tokens=services.settings.max_tokens if body.max_tokens is None else body.max_tokens,
        sampling=Sampling(body.temperature, body.top_p, body.seed, body.stop),
        **rest,
    )
    request.check(services.settings)
    return request


async def _answer(request: Request, services: Services, turn: TurnRequest, stream: bool) -> Response:
    cancelled = threading.Event()
    events = _in_threads(Turn(services, turn, cancelled).run(), cancelled)
    if stream:
        # the first event before the headers: what cannot be started is still an error with its own status
        return _stream(await anext(events), events, cancelled)
    watch = asyncio.create_task(_watch_disconnect(request, cancelled))
    try:
        return JSONResponse(asdict(await _last(events)))
    except TurnCancelledError:
        return Response(status_code=499)  # nobody is there to read it
    finally:
        watch.cancel()


async def _last(events: AsyncGenerator[Event, None]) -> Answer:
    async with contextlib.aclosing(events):
        async for event in events:
            if isinstance(event, Done):
                return event.answer
    raise TurnCancelledError


def _stream(first: Event, events: AsyncGenerator[Event, None], cancelled: threading.Event) -> EventSourceResponse:
    async def gone(_: Message) -> None:
        cancelled.set()

    return EventSourceResponse(_sent(first, events), ping=10, sep="\n", client_close_handler_callable=gone)


async def _sent(first: Event, events: AsyncGenerator[Event, None]) -> AsyncGenerator[ServerSentEvent, None]:
    try:
        async with contextlib.aclosing(events):
            yield _event(first)
            async for event in events:
                yield _event(event)
    except TurnCancelledError:
        return
    except Exception as error:  # the headers are sent: the error becomes the last event
        _, body, _ = describe(error)
        yield _sse("error", body)


def _event(event: Event) -> ServerSentEvent:
    match event:
        case PassagesFound():
            return _sse("passages", asdict(event))
        case Delta():
            return _sse("delta", asdict(event))
        case CitationFound(citation):
            return _sse("citation", asdict(citation))
        case Done(answer):
            return _sse("done", asdict(answer))


def _sse(name: str, data: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(json.dumps(data, ensure_ascii=False), event=name, sep="\n")


async def _in_threads(turn: Generator[Event, None, None], cancelled: threading.Event) -> AsyncGenerator[Event, None]:
    """The events of a turn, each step of which runs in a worker thread. However it ends, the turn is closed."""
    try:
        async for event in iterate_in_threadpool(turn):
            yield event
    finally:
        cancelled.set()
        with anyio.CancelScope(shield=True):
            await run_in_threadpool(turn.close)


async def _watch_disconnect(request: Request, cancelled: threading.Event) -> None:
    while not await request.is_disconnected():
        await anyio.sleep(DISCONNECT_POLL_S)
    cancelled.set()
