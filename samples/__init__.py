"""A sample document, and the demonstration that uses it."""

from pathlib import Path

HANDBOOK = Path(__file__).parent / "handbook.pdf"
