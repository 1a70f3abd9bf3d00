"""What this library raises about models, segments and stored bytes; plain wrong arguments are ValueErrors.

KVCompressionError
├── UnsupportedModelError   the model's attention or cache cannot be compressed
├── SegmentError            segments that do not make one sequence, or a range that cannot be cut out
└── CodecError              bytes that are not what `encode_segment` wrote
"""


class KVCompressionError(Exception):
    """Base of this library's errors."""


class UnsupportedModelError(KVCompressionError):
    """The model's attention or cache cannot be compressed by this library."""

    def __init__(self, model_type: str, reason: str) -> None:
        super().__init__(f"Models of type {model_type!r} cannot be compressed: {reason}.")


class SegmentError(KVCompressionError):
    """Segments that do not make one sequence of this model, or a range of positions that cannot be cut out."""


class CodecError(KVCompressionError):
    """Stored bytes are not what `encode_segment` wrote, or not for this fingerprint."""
