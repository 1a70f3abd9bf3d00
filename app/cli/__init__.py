"""The command `snaprag`."""

from app.cli.commands import main

__all__ = ["main"]
