"""What comes in over the wire, and the shapes that are not objects of the service itself."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

COLLECTION_PATTERN = r"^[\w.-]{1,64}$"


def _plain_text(value: object) -> object:
    """Lone surrogates (JSON allows them) cannot be stored or encoded; NUL means nothing in a question."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8").replace("\0", "").strip()
    return value


Text = Annotated[str, BeforeValidator(_plain_text), Field(min_length=1)]
Collection = Annotated[str, Field(pattern=COLLECTION_PATTERN)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    collection: Collection | None = None
    top_k: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(0.0, ge=0, le=2)
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
