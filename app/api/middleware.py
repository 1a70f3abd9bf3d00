"""Around every request: an id, a log line, and a limit on the body that is kept while it streams in."""

import re
import time
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.failures import describe
from app.errors import UploadTooLargeError
from app.telemetry import Metrics

log = structlog.get_logger()

REQUEST_ID = re.compile(r"[\w.-]{1,64}")


class RequestLog:
    """Gives each request an id (the caller's `X-Request-ID`, if it is a plain one) and logs how it ended."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started, status = time.perf_counter(), 499  # 499: the client left before an answer began

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            self._metrics.requests.labels(scope["method"], route, status).inc()
            milliseconds = round((time.perf_counter() - started) * 1000, 1)
            log.info("request", method=scope["method"], route=route, status=status, ms=milliseconds)


class BodyTooLarge(HTTPException):
    """Raised from inside `receive`: only an HTTPException passes through the framework's body parsing unchanged."""

    def __init__(self, limit_mb: int) -> None:
        super().__init__(UploadTooLargeError.status, str(UploadTooLargeError(limit_mb)), {"Connection": "close"})


class BodyLimit:
    """Refuses a body over its limit as soon as that many bytes have come, or at once when `Content-Length` says so."""

    def __init__(self, app: ASGIApp, upload_mb: int, other_mb: int = 1) -> None:
        self._app = app
        self._upload_mb = upload_mb
        self._other_mb = other_mb

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit_mb = self._upload_mb if scope["path"] == "/documents" else self._other_mb
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > limit_mb * 2**20:
            status, body, _ = describe(UploadTooLargeError(limit_mb))
            await JSONResponse(body, status, {"Connection": "close"})(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit_mb * 2**20:
                raise BodyTooLarge(limit_mb)
            return message

        await self._app(scope, counted, send)
