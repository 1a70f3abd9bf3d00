from collections.abc import Callable
from pathlib import Path

import pytest

from retriever import Extracted
from retriever.extract import extract


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str, bytes], Extracted]:
    """Extracts `content` as a file of the given name."""

    def run(name: str, content: bytes) -> Extracted:
        path = tmp_path / "upload"
        path.write_bytes(content)
        return extract(path, name)

    return run
