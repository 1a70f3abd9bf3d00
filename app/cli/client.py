"""A small client of the HTTP contract. Errors of the service become `ServiceError` with the service's own words."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from app.errors import SnapragError

TIMEOUT = httpx.Timeout(30.0, read=300.0)


class ServiceError(SnapragError):
    """What the service answered, or that it did not."""


class Client:
    """One service, one key. A context manager."""

    def __init__(self, url: str, api_key: str | None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = url
        self._http = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT, trust_env=False)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def get(self, path: str) -> dict[str, Any]:
        """GET, as an object. Raises ServiceError."""
        return self._json(self._send(self._http.build_request("GET", path)))

    def upload(self, path: Path, collection: str) -> dict[str, Any]:
        """Upload one file; its entry in the answer. Raises ServiceError."""
        with path.open("rb") as file:
            request = self._http.build_request(
                "POST", "/documents", data={"collection": collection}, files={"file": (path.name, file)}
            )
            document: dict[str, Any] = self._json(self._send(request))["documents"][0]
        return document

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """POST with `stream`; the events as (name, data). Raises ServiceError, also for an `error` event."""
        request = self._http.build_request("POST", path, json={**body, "stream": True})
        response = self._send(request, stream=True)
        try:
            if response.is_error:
                response.read()
                self._json(response)
            name = ""
            for line in response.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    data = json.loads(line.removeprefix("data: "))
                    if name == "error":
                        raise ServiceError(data["error"]["message"])
                    yield name, data
        except httpx.TransportError as error:
            raise ServiceError("the connection to the service broke; ask again") from error
        finally:
            response.close()

    def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        try:
            return self._http.send(request, stream=stream)
        except httpx.ConnectError as error:
            raise ServiceError(f"no service at {self._url}: start one with 'snaprag serve'") from error
        except httpx.TransportError as error:
            raise ServiceError(f"the service at {self._url} did not answer: {error}") from error

    def _json(self, response: httpx.Response) -> dict[str, Any]:
        try:
            body: dict[str, Any] = response.json()
        except ValueError:
            raise ServiceError(f"{self._url} does not answer like snaprag (HTTP {response.status_code})") from None
        if response.is_error:
            raise ServiceError(body["error"]["message"])
        return body
