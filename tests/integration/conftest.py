"""A real service in a child process, with two tenants, small limits, real models."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.service import ServiceProcess

KEYS = ("key-one", "key-two")
FACTS = """# Harrow Weir handbook

The main pump at Harrow Weir was built in 1931. Its rated flow is 4.2 cubic metres a second.

The oil of the main pump is changed every 400 hours by the shift engineer.

The sluice gate weighs 900 kilograms and opens in seven minutes.

The control room can be called at extension 5521. The night warden is Marta Quill.
"""


@pytest.fixture(scope="session")
def service(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Keys for two tenants, uploads up to 2 MiB, a context of 2,048 tokens."""
    environment = {
        "SNAPRAG_API_KEYS": ",".join(KEYS),
        "SNAPRAG_MAX_UPLOAD_MB": "2",
        "SNAPRAG_CONTEXT_TOKENS": "2048",
        "SNAPRAG_KV_MEMORY_MB": "512",
    }
    with ServiceProcess(tmp_path_factory.mktemp("service"), environment) as running:
        yield running


@pytest.fixture(scope="session")
def http(service: ServiceProcess) -> Iterator[httpx.Client]:
    """The first tenant."""
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {KEYS[0]}"}, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def other(service: ServiceProcess) -> Iterator[httpx.Client]:
    """The second tenant."""
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {KEYS[1]}"}, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def upload() -> Callable[..., dict[str, Any]]:
    """Uploads a file and waits until it is ready or failed; its state."""

    def send(http: httpx.Client, name: str, content: bytes, collection: str = "default") -> dict[str, Any]:
        answer = http.post("/documents", data={"collection": collection}, files={"file": (name, content)})
        assert answer.status_code == 202, answer.text
        document: dict[str, Any] = answer.json()["documents"][0]
        while document["status"] in ("queued", "processing"):
            document = http.get(f"/documents/{document['document_id']}").json()
        return document

    return send


@pytest.fixture(scope="session")
def facts(http: httpx.Client, upload: Callable[..., dict[str, Any]]) -> str:
    """A collection that holds FACTS."""
    assert upload(http, "weir.md", FACTS.encode(), "facts")["status"] == "ready"
    return "facts"
