"""The page at `/`: static files of the package, under a policy that lets nothing in or out but this service."""

from pathlib import Path

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles

WEB = Path(__file__).parent.parent / "web"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> Response:
    """The page itself."""
    return FileResponse(WEB / "index.html", headers=HEADERS)


def mount_page(app: FastAPI) -> None:
    """Serve the page and, under `/assets`, its modules and styles."""
    app.include_router(router)
    app.mount("/assets", StaticFiles(directory=WEB), name="assets")
