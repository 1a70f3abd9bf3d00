"""Where the service may listen."""

import ipaddress

from app.errors import UnsafeAddressError
from app.settings import Settings


def check_address(settings: Settings) -> None:
    """Without API keys the service listens on loopback only. Raises UnsafeAddressError."""
    if not settings.api_keys and not is_loopback(settings.host):
        raise UnsafeAddressError(settings.host)


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
