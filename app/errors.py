"""The error tree. Every error builds its own message; a client never sees another text.

SnapragError
├── UnauthorizedError            401  no key or a wrong one
├── ForeignHostError             422  a service without keys, called by another name
├── SessionNotFoundError         404
├── SessionBusyError             409  a turn of the session is running
├── ConflictError                409  the session moved on while the turn ran
├── UploadTooLargeError          413
├── InvalidRequestError          422  what is wrong with which parameter
│   ├── QuestionTooLongError
│   └── UnknownCollectionError
├── TenantLimitError             429  too many turns of one caller
├── ServerBusyError              503  the queue is full, or the service is stopping
├── ModelMissingError            503  the model is not on this machine
├── PullError                    (command line) a model could not be fetched or converted
├── TuningError                  (command line) a head profile cannot be measured
├── UnsafeAddressError           (start-up) an open service on a reachable address
└── TurnCancelledError           (inside) the client went away; nobody is there to be told

Those of `retriever` have a tree of their own; `app/api/failures.py` maps the ones that reach a client.
"""

from typing import ClassVar


class SnapragError(Exception):
    """Base of all errors that a caller may cause or must hear of."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    param: str | None = None
    retry_after_s: int | None = None


class UnauthorizedError(SnapragError):
    """No API key, or one that is not configured."""

    status, type, code = 401, "authentication_error", "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("A valid API key is needed: send it as 'Authorization: Bearer <key>'.")


class ForeignHostError(SnapragError):
    """A service without keys was called by a name that is not this machine's."""

    status, type, code, param = 422, "invalid_request_error", "foreign_host", "Host"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"A service without API keys answers to 127.0.0.1 and localhost only, not to {name!r}. "
            "Set SNAPRAG_API_KEYS to serve under another name."
        )


class SessionNotFoundError(SnapragError):
    """The session does not exist, or belongs to another tenant."""

    status, type, code = 404, "not_found_error", "session_not_found"
    param = "session_id"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"There is no session {session_id!r}. Leave 'session_id' out to start a new one.")


class SessionBusyError(SnapragError):
    """Another turn of the session holds its lease."""

    status, type, code = 409, "conflict_error", "session_busy"
    param = "session_id"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"A turn of session {session_id!r} is still running. Wait for its answer, or stop it.")


class ConflictError(SnapragError):
    """The session changed while the turn ran: its lease was lost or another turn was committed."""

    status, type, code = 409, "conflict_error", "session_changed"
    param = "session_id"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session {session_id!r} changed while this turn ran; the turn was not kept. Send it again.")


class UploadTooLargeError(SnapragError):
    """The request body is larger than the limit; reading stops there."""

    status, type, code = 413, "invalid_request_error", "upload_too_large"
    param = "file"

    def __init__(self, limit_mb: int) -> None:
        super().__init__(f"The upload is larger than the limit of {limit_mb} MiB. Split it, or raise the limit.")


class InvalidRequestError(SnapragError):
    """A parameter has a value that cannot be served."""

    status, type, code = 422, "invalid_request_error", "invalid_value"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QuestionTooLongError(InvalidRequestError):
    """The question leaves no room in the model's context."""

    code = "question_too_long"

    def __init__(self, size: int, limit: int, unit: str) -> None:
        super().__init__(f"The question has {size:,} {unit}; at most {limit:,} are possible. Shorten it.")


class UnknownCollectionError(InvalidRequestError):
    """A session belongs to one collection; a later turn named another."""

    code = "collection_mismatch"

    def __init__(self, given: str, session: str) -> None:
        super().__init__(
            f"The session searches collection {session!r}, not {given!r}. Start a new session.", "collection"
        )


class TenantLimitError(SnapragError):
    """The caller already has as many turns waiting or running as one tenant may have."""

    status, type, code = 429, "rate_limit_error", "too_many_turns"

    def __init__(self, limit: int, retry_after_s: int) -> None:
        super().__init__(f"You have {limit} turns waiting or running, the most one key may have. Try again later.")
        self.retry_after_s = retry_after_s


class ServerBusyError(SnapragError):
    """The queue is full, or the service is starting or stopping."""

    status, type, code = 503, "server_error", "busy"

    def __init__(self, reason: str, retry_after_s: int) -> None:
        super().__init__(f"The service cannot take this now: {reason}. Try again in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class ModelMissingError(SnapragError):
    """A default model has not been pulled."""

    status, type, code = 503, "server_error", "model_missing"
    retry_after_s = 60

    def __init__(self, name: str) -> None:
        super().__init__(f"Model {name!r} is not on this machine. Run 'snaprag models pull'.")


class PullError(SnapragError):
    """A model could not be fetched, verified or converted."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}.")


class TuningError(SnapragError):
    """A head profile cannot be measured."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The profile was not measured: {reason}. Give texts of a thousand words and more.")


class UnsafeAddressError(SnapragError):
    """Listening beyond loopback without API keys."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"Refusing to listen on {host} without API keys: anybody could read the documents. "
            "Set SNAPRAG_API_KEYS, or listen on 127.0.0.1."
        )


class TurnCancelledError(SnapragError):
    """The client went away; the turn stops at the next step and nothing of it is kept."""

    status, type, code = 499, "cancelled", "cancelled"

    def __init__(self) -> None:
        super().__init__("The turn was stopped.")
