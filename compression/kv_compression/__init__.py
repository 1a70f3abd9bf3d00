"""KV-cache compression for transformers' decoders: caches that are really smaller, that can be stored and restored."""

from kv_compression.cache import LayerEntries
from kv_compression.codec import FORMAT_VERSION, decode_segment, encode_segment
from kv_compression.errors import CodecError, KVCompressionError, SegmentError, UnsupportedModelError
from kv_compression.kv_cache import KVCache
from kv_compression.observation import LayerObservation, Observation
from kv_compression.policies import POLICIES, Full, Policy, SnapKV, StreamingLLM
from kv_compression.prefill import Prefill, decode_step
from kv_compression.segment import Segment, join
from kv_compression.transformers_adapter import attach

__all__ = [
    "FORMAT_VERSION",
    "CodecError",
    "Full",
    "KVCache",
    "KVCompressionError",
    "POLICIES",
    "LayerEntries",
    "LayerObservation",
    "Observation",
    "Policy",
    "Prefill",
    "Segment",
    "SegmentError",
    "SnapKV",
    "StreamingLLM",
    "UnsupportedModelError",
    "attach",
    "decode_segment",
    "decode_step",
    "encode_segment",
    "join",
]
