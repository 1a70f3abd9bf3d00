"""Every error leaves as `{"error": {message, type, code, param}}`; nothing else of it reaches a client."""

from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from app.errors import SnapragError, UploadTooLargeError
from retriever import DocumentNotFoundError, InvalidDocumentError, UnsupportedTypeError

log = structlog.get_logger()

# errors of the other packages: error -> (status, type, code, param)
STATUS: dict[type[Exception], tuple[int, str, str, str | None]] = {
    DocumentNotFoundError: (404, "not_found_error", "document_not_found", "document_id"),
    UnsupportedTypeError: (415, "invalid_request_error", "unsupported_type", "file"),
    InvalidDocumentError: (422, "invalid_request_error", "invalid_document", "file"),
}
# what the framework itself refuses: status -> (type, code)
_HTTP = {
    404: ("not_found_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    413: (UploadTooLargeError.type, UploadTooLargeError.code),
}


def describe(error: Exception) -> tuple[int, dict[str, Any], int | None]:
    """HTTP status, body and seconds to wait (or None) for an error. An unknown one is logged and says nothing."""
    if isinstance(error, SnapragError):
        return error.status, _body(str(error), error.type, error.code, error.param), error.retry_after_s
    for known, (status, type_, code, param) in STATUS.items():
        if isinstance(error, known):
            return status, _body(str(error), type_, code, param), None
    log.error("unexpected_error", exc_info=error)
    return (
        500,
        _body("Something went wrong inside the service; its log says what.", "server_error", "internal_error"),
        None,
    )


def install(app: FastAPI) -> None:
    """Register the handlers."""

    async def known(_: Request, error: Exception) -> JSONResponse:
        status, body, retry_after = describe(error)
        headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}
        return JSONResponse(body, status, headers)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        message, param = _explain(error.errors())
        return JSONResponse(_body(message, "invalid_request_error", "invalid_value", param), 422)

    async def http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        type_, code = _HTTP.get(error.status_code, ("invalid_request_error", "invalid_value"))
        # the framework's 400 is for bodies that cannot be read: the contract has one status for all invalid input
        status = 422 if error.status_code == 400 else error.status_code
        return JSONResponse(_body(str(error.detail), type_, code), status, error.headers)

    kinds: tuple[type[Exception], ...] = (SnapragError, *STATUS, Exception)
    for kind in kinds:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _body(message: str, type_: str, code: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "code": code, "param": param}}


def _explain(errors: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """A sentence about the first error of a validation, and the parameter it is about."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return "The body is not valid JSON.", None
    names = [str(part) for part in first["loc"][1:]]
    param = ".".join(names) or None
    if first["type"] == "missing" and param is None:
        return "The request has no body. Send a JSON object.", None
    return f"{param or 'The body'}: {first['msg']}.", param
