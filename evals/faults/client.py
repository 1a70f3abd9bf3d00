"""One request, with all that may become of it."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from evals.faults.counts import Reply


def send(url: str, key: str, body: dict[str, Any], deadline_s: float) -> Reply:
    """`POST /chat`, whole or as a stream (`body["stream"]`). Given up soon after the deadline."""
    started = time.monotonic()
    found: dict[str, Any] = {"status": 0}
    headers = {"Authorization": f"Bearer {key}"}
    timeout = httpx.Timeout(deadline_s + 5, connect=10)
    try:
        with (
            httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False, verify=False) as http,
            http.stream("POST", "/chat", json=body) as response,
        ):
            if body["stream"] and response.status_code == 200:
                _read_stream(response, found, started + deadline_s + 5)
            else:
                _read_whole(response, found)
    except httpx.TransportError:
        pass  # what came before it counts
    return Reply(seconds=time.monotonic() - started, **found)


def _read_whole(response: httpx.Response, found: dict[str, Any]) -> None:
    content = json.loads(response.read())
    found["retry_after"] = "retry-after" in response.headers
    if response.status_code == 200:
        found |= {"answer": content, "session_id": content["session_id"]}
    else:
        found["code"] = content["error"]["code"] if "error" in content else ""
    found["status"] = response.status_code


def _read_stream(response: httpx.Response, found: dict[str, Any], until: float) -> None:
    """An `error` event counts as what its code would have been without a stream."""
    for name, data in _events(response):
        if name == "passages":
            found["session_id"] = data["session_id"]
        elif name == "delta":
            found["text"] = found.get("text", "") + data["text"]
        elif name == "done":
            found |= {"status": 200, "answer": data}
        elif name == "error":
            code = data["error"]["code"]
            status = {"internal_error": 500, "busy": 503, "session_changed": 409}.get(code, 500)
            found |= {"status": status, "code": code, "retry_after": True}
        if time.monotonic() > until:
            return


def _events(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
