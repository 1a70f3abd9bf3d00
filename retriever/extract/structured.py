"""JSON and JSON Lines: every value with the names that lead to it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retriever.errors import InvalidDocumentError
from retriever.extract.outline import assemble, bounded
from retriever.extract.plain import decode
from retriever.model import Extracted

MAX_BYTES = 50 * 2**20  # the values in memory take many times the bytes
MAX_DEPTH = 100
_ONE_LINE_CHARS = 300  # a record that is longer has a line for each value


def extract_json(path: Path) -> Extracted:
    """A list is a list of records; of an object, each value has a line."""
    if path.stat().st_size > MAX_BYTES:
        raise InvalidDocumentError(f"The JSON file has more than {MAX_BYTES // 2**20} MiB. Split it, or upload jsonl.")
    text, warnings = decode(path.read_bytes())
    return assemble([bounded(_lines(_value(text, "")))], warnings=warnings)


def extract_jsonl(path: Path) -> Extracted:
    """Each line is a record."""
    text, warnings = decode(path.read_bytes())
    lines = (f" in line {n}" if line.strip() else "" for n, line in enumerate(text.splitlines(), 1))
    records = (_value(line, where) for line, where in zip(text.splitlines(), lines, strict=True) if where)
    return assemble([bounded(line for record in records for line in _record(record))], warnings=warnings)


def _value(text: str, where: str) -> Any:
    """Numbers as they are written: a program may read 1.10 as 1.1, and a person would not find it."""
    try:
        return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except json.JSONDecodeError as error:
        place = where or f" in line {error.lineno}"
        raise InvalidDocumentError(f"The file is not valid JSON: {error.msg}{place}.") from error
    except RecursionError as error:
        raise InvalidDocumentError("The JSON is nested too deeply.") from error


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for record in value:
            yield from _record(record)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, list) and any(isinstance(record, dict) for record in inner):
                yield from ("", f"{name}:")
                for record in inner:
                    yield from _record(record)
            else:
                yield from map(_named, _values(inner, name, 1))
    else:
        yield _scalar(value)


def _record(record: Any) -> Iterator[str]:
    """One line when it is short, else a paragraph."""
    values = [_named(value) for value in _values(record, "", 0)]
    line = " | ".join(values)
    if len(line) <= _ONE_LINE_CHARS and "\n" not in line:
        yield line
    else:
        yield from ("", *values, "")


def _named(value: tuple[str, str]) -> str:
    return f"{value[0]}: {value[1]}" if value[0] else value[1]


def _values(value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Names joined by dots and values, without those that are empty. Lists of plain values are one value."""
    if depth > MAX_DEPTH:
        raise InvalidDocumentError(f"The JSON is nested too deeply: more than {MAX_DEPTH} levels.")
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _values(inner, f"{name}.{key}" if name else key, depth + 1)
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for number, inner in enumerate(value, 1):
            yield from _values(inner, f"{name}.{number}" if name else str(number), depth + 1)
    elif isinstance(value, list):
        yield from [(name, ", ".join(map(_scalar, value)))] if value else []
    elif value not in (None, ""):
        yield name, _scalar(value)


def _scalar(value: Any) -> str:
    return (
        {True: "true", False: "false", None: "null"}[value]
        if value is None or value is True or value is False
        else str(value)
    )
