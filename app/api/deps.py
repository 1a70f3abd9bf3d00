"""What routes are given: the open services and the caller's tenant."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.api.access import authenticate
from app.errors import ServerBusyError
from app.services import Services

_bearer = HTTPBearer(auto_error=False, description="One of SNAPRAG_API_KEYS; not needed when none is set.")


def _tenant(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> str:
    return authenticate(request.app.state.settings.api_keys, request.headers.get("authorization", ""))


def _services(request: Request) -> Services:
    services: Services | None = request.app.state.services
    if services is None:
        raise ServerBusyError(request.app.state.readiness.reason or "it is starting", retry_after_s=5)
    return services


TenantDep = Annotated[str, Depends(_tenant)]
ServicesDep = Annotated[Services, Depends(_services)]
