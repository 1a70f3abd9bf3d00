"""What routes are given: the open services and the caller's tenant."""

import hashlib
import hmac
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.errors import ServerBusyError, UnauthorizedError
from app.services import Services

LOCAL_TENANT = "local"
_bearer = HTTPBearer(auto_error=False, description="One of SNAPRAG_API_KEYS; not needed when none is set.")


def tenant_of(key: str) -> str:
    """The tenant of an API key: a digest, so that keys stand in no database, log or cache."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def _tenant(request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> str:
    keys: tuple[str, ...] = request.app.state.settings.api_keys
    if not keys:
        return LOCAL_TENANT
    given = credentials.credentials.encode() if credentials else b""
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]  # all are compared: time tells nothing
    if not any(matches):
        raise UnauthorizedError
    return tenant_of(keys[matches.index(True)])


def _services(request: Request) -> Services:
    services: Services | None = request.app.state.services
    if services is None:
        raise ServerBusyError(request.app.state.readiness.reason or "it is starting", retry_after_s=5)
    return services


TenantDep = Annotated[str, Depends(_tenant)]
ServicesDep = Annotated[Services, Depends(_services)]
