"""`/health/*` and `/metrics`."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from app.api.schemas import Health

router = APIRouter(tags=["health"])


@router.get("/health/live")
async def live() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/health/ready")
async def ready(request: Request, response: Response) -> Health:
    """The models are loaded and turns are taken; 503 with a reason before that."""
    readiness = request.app.state.readiness
    if readiness.reason is None:
        return Health(status="ok")
    response.status_code = 503
    response.headers["Retry-After"] = "5"
    return Health(status="not ready", reason=readiness.reason)


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """Prometheus text."""
    services = request.app.state.services
    if services is not None:
        services.refresh_metrics()
    return Response(generate_latest(request.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
