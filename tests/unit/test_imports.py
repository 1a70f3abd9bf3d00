"""`app` builds on the two libraries; these know neither `app` nor each other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN = {"retriever": {"app", "kv_compression"}, "compression/kv_compression": {"app", "retriever"}}


def imported(path: Path) -> set[str]:
    """Top-level names of the packages that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_library_imports_neither_the_service_nor_the_other(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    wrong = {str(path): found for path in files if (found := imported(path) & FORBIDDEN[package])}
    assert not wrong
