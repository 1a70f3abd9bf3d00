"""What this library raises. `KVCompressionError` is the base of both."""


class KVCompressionError(Exception):
    """Base of this library's errors."""


class UnsupportedModelError(KVCompressionError):
    """The model's attention or cache cannot be compressed by this library."""

    def __init__(self, model_type: str, reason: str) -> None:
        super().__init__(f"Models of type {model_type!r} cannot be compressed: {reason}.")


class CodecError(KVCompressionError):
    """Stored bytes are not what `encode_segment` wrote, or not for this fingerprint."""
