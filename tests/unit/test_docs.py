"""The documentation names what there is: settings with their defaults, routes, commands, error codes."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

import app.errors
from app.cli.commands import app as command_line
from app.main import create_app
from app.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
API = (ROOT / "docs" / "api.md").read_text()


def test_every_setting_with_its_default_and_description() -> None:
    rows = re.findall(r"^\| `SNAPRAG_(\w+)` \| (.+?) \| (.+) \|$", (ROOT / "docs" / "settings.md").read_text(), re.M)
    documented = {name.lower(): (default.strip("`"), text) for name, default, text in rows}
    assert set(documented) == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        default = {None: "unset", (): "none"}.get(field.default, str(field.default))
        assert documented[name] == (default, field.description)


def test_every_route(tmp_path: Path) -> None:
    application = create_app(Settings(data_dir=tmp_path))
    documented = set(re.findall(r"^\| `(\w+) (/\S*)` \|", API, re.M))
    routes = {
        (method, path)
        for path, operations in application.openapi()["paths"].items()
        for method in map(str.upper, operations)
    }
    assert documented == routes | {("GET", "/")}


def test_every_command() -> None:
    names = set(get_command(command_line).commands)  # type: ignore[attr-defined]
    assert names == {"serve", "ingest", "ask", "chat", "models", "tune", "doctor"}
    for name in names:
        assert f"snaprag {name}" in README


def test_every_error_code() -> None:
    errors = [error for error in vars(app.errors).values() if isinstance(error, type)]
    shown = [error for error in errors if issubclass(error, app.errors.SnapragError) and 400 < error.status < 600]
    hidden = {"cancelled"}
    assert {error.code for error in shown} - hidden <= set(re.findall(r"`(\w+)`", API))


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
