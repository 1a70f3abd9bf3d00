"""Before a body is read: who calls, and under which name."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.address import is_loopback
from app.api.failures import describe
from app.errors import ForeignHostError, SnapragError, UnauthorizedError

LOCAL_TENANT = "local"
_WITH_BODY = ("POST", "PUT", "PATCH")


def tenant_of(key: str) -> str:
    """The tenant of an API key: a digest, so that keys stand in no database, log or cache."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def authenticate(keys: Sequence[str], authorization: str) -> str:
    """The tenant of a request with this header; without keys everybody is the same one. Raises UnauthorizedError."""
    if not keys:
        return LOCAL_TENANT
    scheme, _, given = authorization.partition(" ")
    matches = [hmac.compare_digest(given.strip().encode(), key.encode()) for key in keys]  # all: time tells nothing
    if scheme.lower() != "bearer" or not any(matches):
        raise UnauthorizedError
    return tenant_of(keys[matches.index(True)])


class Access:
    """Refuses a body without a key before it is taken in; and, where no key is needed, the names of other hosts.

    A page of another site can have its own name resolve to loopback; the browser then sends that name.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            try:
                self._check(scope["method"], Headers(scope=scope))
            except SnapragError as error:
                status, body, _ = describe(error)
                await JSONResponse(body, status, {"Connection": "close"})(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not self._keys and not is_loopback(name.strip("[]").lower()):
            raise ForeignHostError(name)
        if method in _WITH_BODY:
            authenticate(self._keys, headers.get("authorization", ""))
