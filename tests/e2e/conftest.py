"""A real service and a real browser. Where none is installed these tests skip, except in CI."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from benchmarks.service import ServiceProcess

expect.set_options(timeout=60_000)  # an answer takes seconds on a busy machine

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium of the system."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium is installed")
        pytest.skip("no Chromium is installed")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def open_service(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service without keys."""
    with ServiceProcess(tmp_path_factory.mktemp("page"), {"SNAPRAG_KV_MEMORY_MB": "256"}) as running:
        yield running


class Visit:
    """A page, with what it complained about and where it tried to go."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: request.url.startswith(url) or self.foreign.append(request.url))

    def _hear(self, message: ConsoleMessage) -> None:
        # the browser reports every response that is an error; the page shows those to the person
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)


@pytest.fixture
def visit(browser: Browser, open_service: ServiceProcess) -> Iterator[Visit]:
    """The page, opened in a fresh profile. It must neither complain nor leave the service."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    found = Visit(context.new_page(), open_service.url)
    found.page.set_default_timeout(60_000)
    found.page.goto(open_service.url)
    yield found
    context.close()
    assert found.complaints == []
    assert found.foreign == []
