"""Every setting of the service, read once from environment variables with the prefix `SNAPRAG_`."""

from base64 import b64decode
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretBytes, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_EMBEDDER = "all-minilm-l6-v2"

_URL_SAFE = str.maketrans("-_", "+/")

ArchiveKind = Literal["full", "expected_attention", "keydiff", "knorm", "working"]


class Settings(BaseSettings):
    """One frozen object. `docs/settings.md` lists every field, and a test compares the two."""

    model_config = SettingsConfigDict(env_prefix="SNAPRAG_", frozen=True, extra="ignore", hide_input_in_errors=True)

    # where things live
    data_dir: Path = Field(Path("snaprag-data"), description="Everything the service writes is below this folder.")
    database_url: str | None = Field(None, description="SQLAlchemy URL. Unset: SQLite in the data directory.")
    redis_url: str | None = Field(None, description="Redis-protocol server. Unset: the embedded server.")

    # who may call
    host: str = Field("127.0.0.1", description="Address to listen on. Another than loopback needs API keys.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on.")
    api_keys: Annotated[tuple[str, ...], NoDecode] = Field((), description="Comma-separated keys, each one a tenant.")

    # models
    model: str = Field(DEFAULT_MODEL, description="The default model's name, a hub id or a local folder.")
    embedder: str = Field(DEFAULT_EMBEDDER, description="The default embedder's name, a hub id or a local folder.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto` is CUDA when present, else the CPU.")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Of weights and KV. `auto` is bfloat16 where the device computes in it, else float32."
    )

    # compression
    policy: Literal["full", "snapkv", "streaming_llm", "blend"] = Field(
        "blend", description="Chooses the working cache. `blend`: SnapKV's vote and ExpectedAttention, half each."
    )
    budget: int = Field(1024, ge=16, description="Positions kept per KV head, the window included.")
    window: int = Field(32, ge=1, description="SnapKV's observation window, in tokens.")
    kernel: int = Field(15, ge=1, description="SnapKV's pooling kernel, in positions; odd.")
    pooling: Literal["avg", "max"] = Field("avg", description="SnapKV's pooling.")
    allocation: Literal["profile", "uniform"] = Field(
        "profile", description="How heads share the budget. `profile`: by the model's head profile, if it has one."
    )
    archive: ArchiveKind = Field(
        "expected_attention",
        description="What later turns get: all, what a question-free policy keeps, or what SnapKV kept.",
    )
    archive_keep: float = Field(0.25, gt=0, le=1, description="Fraction of positions that such a policy keeps.")
    archive_format: Literal["raw", "bfloat16", "fp8", "int8", "int4"] = Field(
        "int4", description="How stored KV is written. `raw` loses nothing; `int4` takes a quarter of bfloat16."
    )
    prefill_chunk: int = Field(512, ge=1, description="Tokens per prefill step.")

    # a turn
    top_k: int = Field(6, ge=1, description="Passages retrieved when the request does not say.")
    max_top_k: int = Field(50, ge=1, description="The largest `top_k` a request may ask for.")
    max_tokens: int = Field(256, ge=1, description="Answer tokens when the request does not say.")
    max_max_tokens: int = Field(1024, ge=1, description="The largest `max_tokens` a request may ask for.")
    max_question_chars: int = Field(16_000, ge=1, description="Longest question or message, in characters.")
    context_tokens: int | None = Field(None, ge=256, description="Context limit. Unset: the model's own.")

    # limits
    max_upload_mb: int = Field(100, ge=1, description="Largest upload request, in MiB.")
    running_turns: int = Field(8, ge=1, description="Turns that run on the model together.")
    running_memory_mb: int = Field(4096, ge=1, description="Memory for the caches of running turns, in MiB.")
    queue_size: int = Field(32, ge=1, description="Turns that may wait for the model.")
    queue_tokens: int = Field(262_144, ge=1, description="Prompt tokens that may wait for the model, in all.")
    queue_timeout_s: int = Field(120, ge=1, description="Longest wait for the model, in seconds.")
    tenant_turns: int = Field(8, ge=1, description="Turns one tenant may have waiting or running.")
    kv_memory_mb: int = Field(2048, ge=64, description="Memory limit of the embedded server, in MiB.")
    kv_ttl_s: int = Field(7 * 24 * 3600, ge=1, description="Seconds until an unused session cache expires.")
    kv_tenant_mb: int | None = Field(None, ge=1, description="Quota of one tenant's session caches, in MiB.")
    kv_total_mb: int | None = Field(None, ge=1, description="Quota of all session caches together, in MiB.")
    kv_key: Annotated[tuple[SecretBytes, ...], NoDecode] = Field(
        (), description="Keys of 32 bytes, base64 or hex. The first encrypts session caches, all decrypt them."
    )
    kv_timeout_ms: int = Field(250, ge=1, description="Longest wait for the Redis-protocol server, paid once.")

    @field_validator("api_keys", mode="before")
    @classmethod
    def _split_keys(cls, value: object) -> object:
        return tuple(key.strip() for key in value.split(",") if key.strip()) if isinstance(value, str) else value

    @field_validator("kv_key", mode="before")
    @classmethod
    def _decode_kv_keys(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(SecretBytes(_key(part.strip())) for part in value.split(",") if part.strip())

    @field_validator("kernel")
    @classmethod
    def _odd_kernel(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("the pooling kernel must be odd, so that every position has a centre")
        return value

    @model_validator(mode="after")
    def _room_beside_the_window(self) -> Self:
        if self.window >= self.budget:
            raise ValueError(f"the budget ({self.budget}) must be larger than the window ({self.window})")
        return self

    @property
    def models_dir(self) -> Path:
        """Folder of the pulled models."""
        return self.data_dir / "models"

    @property
    def profiles_dir(self) -> Path:
        """Folder of the head profiles that were measured here."""
        return self.data_dir / "profiles"


def _key(text: str) -> bytes:
    try:
        # one of 32 bytes has 64 hexadecimal digits, or 44 of base64 with its padding
        key = bytes.fromhex(text) if len(text) == 64 else b64decode(text.translate(_URL_SAFE), validate=True)
    except ValueError:
        key = b""
    if len(key) != 32:
        # without its cause and without the text: what is nearly a key is as secret as one
        raise ValueError(
            "each key must be 32 bytes, in base64 or hex, as `openssl rand -base64 32` makes them"
        ) from None
    return key
