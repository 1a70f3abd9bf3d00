"""What comes in over the wire, and the shapes that are not objects of the service itself."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

COLLECTION_PATTERN = r"^[\w.-]{1,64}$"
STOP_STRINGS = 4
STOP_CHARS = 64
_STOP_STRING = {"type": "string", "minLength": 1, "maxLength": STOP_CHARS}
_STOP_SCHEMA = {"anyOf": [_STOP_STRING, {"type": "array", "items": _STOP_STRING, "maxItems": STOP_STRINGS}]}


def _plain_text(value: object) -> object:
    """Lone surrogates (JSON allows them) cannot be stored or encoded; NUL means nothing in a question."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8").replace("\0", "").strip()
    return value


def _stop_strings(value: object) -> object:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or len(strings) > STOP_STRINGS:
        raise PydanticCustomError("stop", "Give a string or a list of up to {most} strings", {"most": STOP_STRINGS})
    if not all(isinstance(string, str) and 1 <= len(string) <= STOP_CHARS for string in strings):
        raise PydanticCustomError("stop", "A stop string must have 1 to {most} characters", {"most": STOP_CHARS})
    return strings


Text = Annotated[str, BeforeValidator(_plain_text), Field(min_length=1)]
Collection = Annotated[str, Field(pattern=COLLECTION_PATTERN)]
Stop = Annotated[tuple[str, ...], BeforeValidator(_stop_strings), WithJsonSchema(_STOP_SCHEMA)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    collection: Collection | None = None
    top_k: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(0.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: Stop = ()
    stream: bool = False


class AskRequest(_Request):
    """`POST /ask`."""

    question: Text


class ChatRequest(_Request):
    """`POST /chat`."""

    message: Text
    session_id: str | None = Field(None, max_length=64)


class ErrorBody(BaseModel):
    """The inside of every error."""

    message: str
    type: str
    code: str
    param: str | None = None


class ErrorResponse(BaseModel):
    """Every error of the service."""

    error: ErrorBody


class Accepted(BaseModel):
    """One uploaded document, queued."""

    document_id: str
    filename: str
    status: str


class Uploaded(BaseModel):
    """`POST /documents`."""

    documents: list[Accepted]


class Listing(BaseModel):
    """`GET /documents` and `GET /sessions`."""

    model_config = ConfigDict(extra="allow")


class Health(BaseModel):
    """`GET /health/*`."""

    status: str
    reason: str | None = None
    checks: dict[str, Any] | None = None
