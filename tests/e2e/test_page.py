"""The page as a person uses it."""

import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.service import ServiceProcess

FACTS = """The main pump at Harrow Weir was built in 1931. Its rated flow is 4.2 cubic metres a second.

The oil of the main pump is changed every 400 hours by the shift engineer.

The control room can be called at extension 5521. The night warden is Marta Quill.
"""
HOSTILE = """<script>document.title = "owned"</script> <img src="http://attacker.invalid/x.png" onerror="alert(1)">
The lock keeper of the hostile canal is called \u202eHarald\u202c Vane. <b onclick="alert(2)">Click</b> [a](http://attacker.invalid)
"""


@pytest.fixture
def page(visit: "object") -> Page:
    """The page itself."""
    found: Page = visit.page  # type: ignore[attr-defined]
    return found


def upload(page: Page, tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    page.set_input_files("#files", file)
    expect(page.locator('#documents li[data-status="ready"]', has_text=name)).to_be_visible()


def ask(page: Page, message: str) -> None:
    turns = page.locator(".cost").count()
    page.fill("#message", message)
    page.press("#message", "Enter")
    expect(page.locator(".cost")).to_have_count(turns + 1)


def test_upload_ask_follow_up_reload(page: Page, tmp_path: Path) -> None:
    upload(page, tmp_path, "weir.txt", FACTS)
    ask(page, "How often is the oil of the main pump changed?")
    expect(page.locator(".cost").first).to_have_text(re.compile(r"reused 0 of [\d,]+ tokens · first token after \d"))
    marked = page.locator(".source mark").first
    expect(marked).to_contain_text("400 hours")
    expect(page.locator(".source summary").first).to_contain_text("weir.txt, page 1")
    ask(page, "Who is the night warden?")
    expect(page.locator(".cost").nth(1)).to_have_text(re.compile(r"reused [1-9][\d,]* of [\d,]+ tokens"))
    before = page.inner_text("#turns")
    page.reload()
    expect(page.locator(".cost")).to_have_count(2)
    assert page.inner_text("#turns") == before
    expect(page.locator('#sessions [aria-current="true"]')).to_have_text(re.compile("How often is the oil"))


def test_a_marker_leads_to_its_source(page: Page, tmp_path: Path) -> None:
    upload(page, tmp_path, "weir2.txt", FACTS)
    ask(page, "How often is the oil of the main pump changed?")
    page.locator(".source").first.evaluate("node => node.open = false")
    page.locator(".marker").first.click()
    expect(page.locator(".source").first).to_have_attribute("open", "")
    expect(page.locator(".source summary").first).to_be_focused()


def test_nothing_found_looks_different(page: Page) -> None:
    ask(page, "Which football club won the European championship in Lisbon?")
    expect(page.locator(".answer.unanswerable")).to_contain_text("could not find")


def test_stop_keeps_nothing(page: Page, tmp_path: Path) -> None:
    upload(page, tmp_path, "weir3.txt", FACTS * 40)
    page.fill("#message", "How often is the oil of the main pump changed?")
    page.press("#message", "Enter")
    page.click("#stop")
    expect(page.locator(".notice")).to_contain_text("Stopped")
    expect(page.locator("#send")).to_be_enabled()
    page.reload()
    expect(page.locator(".turn")).to_have_count(0)


def test_hostile_text_is_only_text(page: Page, tmp_path: Path) -> None:
    upload(page, tmp_path, "hostile.txt", HOSTILE)
    ask(page, "Who is the lock keeper of the hostile canal?")
    assert page.title() == "snaprag"
    assert page.locator("#turns img, #turns script, #turns a, #turns b").count() == 0
    page.locator(".source.read summary").click()
    expect(page.locator(".source.read .odd").first).to_have_text("U+202E")


def test_a_file_that_cannot_be_read_says_why(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.write_bytes(b"")
    page.set_input_files("#files", file)
    expect(page.locator("#upload-status")).to_contain_text("empty")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    page.set_input_files("#files", tmp_path / "broken.pdf")
    expect(page.locator('#documents li[data-status="failed"]')).to_contain_text("damaged")


def test_a_dropped_file_is_uploaded(page: Page) -> None:
    page.evaluate(
        """() => {
            const data = new DataTransfer();
            data.items.add(new File(["The ferry leaves at 07:40."], "ferry.txt"));
            document.getElementById("drop").dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true}));
        }"""
    )
    expect(page.locator('#documents li[data-status="ready"]', has_text="ferry.txt")).to_be_visible()
    page.click('button[aria-label="Delete ferry.txt"]')
    expect(page.locator("#documents", has_text="ferry.txt")).to_have_count(0)


def test_by_keyboard_alone(page: Page, tmp_path: Path) -> None:
    upload(page, tmp_path, "keys.txt", FACTS)
    page.reload()
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.type("Who is the night warden?")
    page.keyboard.press("Enter")
    expect(page.locator(".cost")).to_have_count(1)
    for _ in range(3):
        page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.matches('.source summary, .marker, button')")


def test_sessions_are_listed_opened_and_deleted(page: Page, tmp_path: Path) -> None:
    upload(page, tmp_path, "list.txt", FACTS)
    ask(page, "Who is the night warden?")
    page.click("#new-session")
    expect(page.locator(".turn")).to_have_count(0)
    count = page.locator("#sessions li").count()
    page.locator("#sessions .name").first.click()
    expect(page.locator(".turn")).to_have_count(1)
    page.locator("#sessions button.quiet").first.click()
    expect(page.locator("#sessions li")).to_have_count(count - 1)


def test_dark_light_and_narrow(page: Page) -> None:
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "light")
    page.click("#theme")
    expect(root).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(root).to_have_attribute("data-theme", "dark")
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_control_has_a_name_and_live_regions_are_polite(page: Page) -> None:
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, textarea, input:not([hidden])")].filter((control) =>
            !control.textContent.trim() && !control.getAttribute("aria-label") && !control.labels?.length
        ).map((control) => control.outerHTML)"""
    )
    assert unnamed == []
    assert page.get_attribute("#turns", "aria-live") == "polite"
    assert page.get_attribute("#chat-status", "aria-live") == "polite"


def test_the_policy_lets_nothing_in(open_service: ServiceProcess) -> None:
    headers = httpx.get(open_service.url).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_a_key_is_asked_for(browser: Browser, models_dir: Path, tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data", {"SNAPRAG_API_KEYS": "secret"}) as service:
        page = browser.new_page()
        page.goto(service.url)
        page.fill("#key", "secret")
        page.press("#key", "Enter")
        expect(page.locator("#key-dialog")).to_be_hidden()
        page.fill("#message", "Is anything there?")
        page.press("#message", "Enter")
        expect(page.locator(".answer.unanswerable")).to_be_visible(timeout=30_000)
        page.close()
