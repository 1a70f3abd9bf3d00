"""The commands as a person types them, against a running service."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.engine.loading import load_model
from app.engine.policy import allocation_of, find_profile, working_policy
from app.settings import Settings
from benchmarks.service import ServiceProcess, free_port
from kv_compression import Uniform
from tests.integration.conftest import FACTS, KEYS

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def snaprag(tmp_path: Path) -> Run:
    """Runs `snaprag` in an empty folder; `environment` adds to the process's own."""

    def run(*arguments: str, typed: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("snaprag")), *arguments]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SNAPRAG_")}
        return subprocess.run(
            command,
            input=typed,
            env={**kept, "COLUMNS": "200", **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def talk(snaprag: Run, service: ServiceProcess) -> Run:
    """`snaprag` with the address and the first key of the running service."""

    def run(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        return snaprag(*arguments, typed=typed, SNAPRAG_URL=service.url, SNAPRAG_API_KEY=KEYS[0])

    return run


def test_a_folder_is_ingested_and_every_file_reported(talk: Run, tmp_path: Path) -> None:
    (tmp_path / "papers/deep").mkdir(parents=True)
    (tmp_path / "papers/.hidden").mkdir()
    (tmp_path / "papers/weir.md").write_text(FACTS)
    (tmp_path / "papers/deep/水門 [b]gate.txt").write_text("The gate is green.")
    (tmp_path / "papers/empty.txt").write_text("")
    (tmp_path / "papers/.hidden/secret.txt").write_text("hidden")
    (tmp_path / "papers/picture.png").write_bytes(b"\x89PNG")
    done = talk("ingest", "papers", "--collection", "cli")
    assert done.returncode == 1
    assert "weir.md: 1 pages, 1 passages" in done.stdout
    assert "水門 [b]gate.txt: 1 pages, 1 passages" in done.stdout
    assert "empty.txt: failed: " in done.stdout
    assert "secret" not in done.stdout
    assert "picture" not in done.stdout
    assert done.stderr == ""


def test_nothing_to_ingest(talk: Run, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    done = talk("ingest", "nothing")
    assert (done.returncode, "nothing to ingest" in done.stdout) == (1, True)
    assert talk("ingest", "not-there").returncode == 2


def test_a_question_shows_answer_source_and_cost(talk: Run, facts: str) -> None:
    done = talk("ask", "What is the rated flow of the main pump?", "--collection", facts)
    assert done.returncode == 0
    assert "4.2 cubic metres" in done.stdout
    assert "[1] Harrow Weir handbook, page 1:" in done.stdout
    assert "reused 0 of " in done.stdout


def test_a_conversation_goes_on_in_a_second_call(talk: Run, facts: str) -> None:
    first = talk(
        "chat", "--collection", facts, typed="What is the rated flow of the main pump?\n\nWho built it?\n/quit\n"
    )
    assert first.returncode == 0
    assert first.stdout.count("reused ") == 2
    session_id = first.stdout.rsplit("--session ", 1)[1].strip()
    second = talk("chat", "--session", session_id, typed="How much does the gate weigh?\n")
    assert second.returncode == 0
    assert "What is the rated flow" in second.stdout  # the session's title
    assert "reused 0 of" not in second.stdout


def test_an_error_in_a_conversation_does_not_end_it(talk: Run, facts: str) -> None:
    done = talk("chat", "--collection", facts, typed=f"{'very ' * 5000}long?\nHow much does the gate weigh?\n")
    assert done.returncode == 0
    assert "error: " in done.stdout
    assert "reused 0 of" in done.stdout


@pytest.mark.parametrize("command", [["ask", "Who?"], ["chat", "--session", "ses_none"], ["ingest", "."]])
def test_no_service_is_one_line_that_says_what_to_do(snaprag: Run, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "a.txt").write_text("some text")
    url = f"http://127.0.0.1:{free_port()}"
    done = snaprag(*command, SNAPRAG_URL=url)
    assert done.returncode == 1
    assert f"no service at {url}: start one with 'snaprag serve'" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout


def test_a_wrong_key_and_an_unknown_session(snaprag: Run, talk: Run, service: ServiceProcess) -> None:
    refused = snaprag("ask", "Who?", SNAPRAG_URL=service.url, SNAPRAG_API_KEY="wrong")
    assert (refused.returncode, refused.stderr.startswith("error: ")) == (1, True)
    unknown = talk("chat", "--session", "ses_none")
    assert (unknown.returncode, unknown.stderr.startswith("error: ")) == (1, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_another_address_without_keys_is_refused(snaprag: Run, host: str) -> None:
    done = snaprag("serve", "--host", host)
    assert done.returncode == 1
    assert "without API keys" in done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("SNAPRAG_KERNEL", "4"), ("SNAPRAG_BUDGET", "many"), ("SNAPRAG_PORT", "99999"), ("SNAPRAG_POLICY", "h3o")],
)
def test_a_wrong_setting_is_named(snaprag: Run, name: str, value: str) -> None:
    done = snaprag("doctor", **{name: value})
    assert done.returncode == 1
    assert name in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_of_a_running_service(snaprag: Run, service: ServiceProcess, facts: str) -> None:
    done = snaprag("doctor", SNAPRAG_DATA_DIR=str(service.data_dir))
    assert done.returncode == 0, done.stdout
    for subject in ("data directory", "smollm2-135m-instruct", "database", "index", "embedded server: version"):
        assert subject in done.stdout
    assert "without an expiry" in done.stdout


def test_doctor_says_what_is_missing(snaprag: Run, tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    done = snaprag("doctor", SNAPRAG_DATA_DIR=str(tmp_path / "data"), SNAPRAG_REDIS_URL=url)
    assert done.returncode == 1
    assert "run 'snaprag models pull'" in done.stdout
    assert "start it, or correct SNAPRAG_REDIS_URL" in done.stdout
    assert not (tmp_path / "data").exists()


def test_doctor_finds_damage(snaprag: Run, tmp_path: Path) -> None:
    folder = tmp_path / "data/models/all-minilm-l6-v2"
    folder.mkdir(parents=True)
    (folder / "snaprag-manifest.json").write_text(json.dumps({"model.safetensors": "0" * 64}))
    (tmp_path / "data/snaprag.db").write_bytes(b"not a database" * 1000)
    done = snaprag("doctor", SNAPRAG_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 1
    assert "all-minilm-l6-v2 is damaged (model.safetensors)" in done.stdout
    assert "snaprag.db cannot be read" in done.stdout


def test_models_list(snaprag: Run, models_dir: Path, tmp_path: Path) -> None:
    assert snaprag("models", "list", SNAPRAG_DATA_DIR=str(models_dir.parent)).stdout.count(": ready") == 2
    assert snaprag("models", "list", SNAPRAG_DATA_DIR=str(tmp_path)).stdout.count("snaprag models pull") == 2


def test_tuning_writes_a_profile_that_is_then_used(snaprag: Run, models_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/models").symlink_to(models_dir)
    (tmp_path / "text.txt").write_text(" ".join(f"Valve {i} closes at {i * 7} bar." for i in range(70)))
    done = snaprag("tune", "text.txt", SNAPRAG_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("layer ") == 30
    (file,) = (tmp_path / "data/profiles").iterdir()
    settings = Settings(data_dir=tmp_path / "data")
    assert find_profile(settings, json.loads(file.read_text())["weights"]) is not None
    (tmp_path / "short.txt").write_text("Too short.")
    short = snaprag("tune", "short.txt", SNAPRAG_DATA_DIR=str(tmp_path / "data"))
    assert (short.returncode, "Give texts of a thousand words" in short.stderr) == (1, True)


def test_the_default_model_comes_with_its_profile(models_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(models_dir)
    settings = Settings(data_dir=tmp_path)
    for dtype in ("bfloat16", "float32"):
        loaded = load_model(settings.model_copy(update={"dtype": dtype}))
        profile = find_profile(settings, loaded.weights)
        assert profile is not None
        assert working_policy(settings, allocation_of(settings, profile)).allocation == profile
    assert allocation_of(Settings(allocation="uniform"), profile) == Uniform()
    assert find_profile(settings, "0" * 64) is None
