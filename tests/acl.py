"""What an ACL user needs, read from the documentation."""

import re
from pathlib import Path

_DOCUMENT = Path(__file__).parents[1] / "docs" / "sessions.md"


def documented_acl(password: str, *, cluster: bool = False) -> str:
    """The user `snaprag` who may do exactly what the documentation asks a server, or one of a cluster, to allow."""
    words = re.search(r"and the commands\n`([^`]+)`, on a cluster also `([^`]+)`", _DOCUMENT.read_text())
    assert words is not None
    allowed = [f"+{word}" for part in words.groups()[: 2 if cluster else 1] for word in part.split()]
    return " ".join([f"snaprag on >{password} ~snaprag:* resetchannels -@all", *allowed])
