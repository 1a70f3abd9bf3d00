"""The page on compression names what there is, with its defaults, and its six lines run."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel

import kv_compression
from kv_compression import POLICIES, Allocation
from kv_compression.storage import FORMATS

PAGE = (Path(__file__).parents[2] / "docs" / "compression.md").read_text(encoding="utf-8")


def test_every_policy_is_documented_with_its_parameters() -> None:
    rows = {row.split("|")[1].strip(" `"): row for row in PAGE.splitlines() if re.match(r"\| `\w+` \|", row)}
    assert set(rows) == set(POLICIES)
    for name, policy in POLICIES.items():
        for field in dataclasses.fields(policy):  # type: ignore[arg-type]
            if field.name == "allocation" or (field.name == "budget" and field.default is None):
                continue
            default = "" if field.default is dataclasses.MISSING else f" `?{field.default}"
            assert re.search(f"`{field.name}`{default}", rows[name]), f"{name}: {field.name}{default}"


def test_every_allocation_is_documented_with_its_parameters() -> None:
    rows = re.findall(r"^\| `(\w+)\((.*)\)` \|", PAGE, re.M)
    assert {name for name, _ in rows} == {allocation.__name__ for allocation in Allocation.__subclasses__()}
    for name, parameters in rows:
        assert re.findall(r"(\w+)[=,]?", re.sub(r'="?[\w.]+"?', "", parameters)) == [
            field.name for field in dataclasses.fields(getattr(kv_compression, name))
        ]


def test_every_storage_format_is_documented() -> None:
    table = PAGE.split("| format |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| (\w+) \|", table, re.M)) == set(FORMATS)


def test_the_six_lines_run(tiny_model: Callable[..., PreTrainedModel]) -> None:
    code = PAGE.split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) == 6
    names = {**vars(kv_compression), "model": tiny_model(max_position_embeddings=4096), "token_ids": [5] * 1100}
    exec(compile(code, "docs/compression.md", "exec"), names)
    assert names["working"].entries == 1024
