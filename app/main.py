"""The application: `create_app(settings)`. Nothing is read or opened at import, and it may be called twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio.to_thread
import structlog
from fastapi import FastAPI

from app.api import documents, failures, health, page, sessions, turns
from app.api.access import Access
from app.api.middleware import BodyLimit, RequestLog
from app.errors import SnapragError
from app.services import Services, open_services
from app.settings import Settings
from app.telemetry import Metrics
from retriever import RetrieverError

log = structlog.get_logger()

DESCRIPTION = "Upload documents, ask, and keep asking: follow-ups reuse the session's compressed KV cache."
OTHER_THREADS = 16  # worker threads beside those that turns may hold


@dataclass
class Readiness:
    """Why the service is not ready; None when it is."""

    reason: str | None = "the models are loading"


def create_app(settings: Settings) -> FastAPI:
    """The service as an ASGI application. Models load while it already answers `/health/live`."""
    metrics = Metrics()
    # no /docs: its page loads scripts from elsewhere
    app = FastAPI(title="snaprag", description=DESCRIPTION, lifespan=_lifespan, docs_url=None, redoc_url=None)
    app.state.settings, app.state.metrics = settings, metrics
    app.state.services, app.state.readiness = None, Readiness()
    failures.install(app)
    for router in (documents.router, turns.router, sessions.router, health.router):
        app.include_router(router)
    page.mount_page(app)
    app.add_middleware(BodyLimit, upload_mb=settings.max_upload_mb)
    app.add_middleware(Access, keys=settings.api_keys)
    app.add_middleware(RequestLog, metrics=metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    anyio.to_thread.current_default_thread_limiter().total_tokens = settings.queue_size + OTHER_THREADS
    opened = ExitStack()
    loading = asyncio.create_task(_open(app, opened))
    try:
        yield
    finally:
        app.state.readiness.reason = "it is stopping"
        await loading
        app.state.services = None
        await asyncio.to_thread(opened.close)


async def _open(app: FastAPI, opened: ExitStack) -> None:
    def enter() -> Services:
        return opened.enter_context(open_services(app.state.settings, app.state.metrics))

    try:
        app.state.services = await asyncio.to_thread(enter)
    except (SnapragError, RetrieverError) as error:
        app.state.readiness.reason = str(error)
        log.error("not_ready", reason=str(error))
    except Exception:
        app.state.readiness.reason = "it could not start; its log says why"
        log.exception("not_ready")
    else:
        app.state.readiness.reason = None
        log.info("ready", url=f"http://{app.state.settings.host}:{app.state.settings.port}")
