"""KV-cache compression for transformers' decoders: caches that are really smaller, that can be stored and restored."""

from kv_compression.cache import LayerEntries
from kv_compression.codec import FORMAT_VERSION, decode_segment, encode_segment
from kv_compression.errors import CodecError, KVCompressionError, UnsupportedModelError
from kv_compression.kv_cache import KVCache
from kv_compression.policies import Full, Observation, Policy, SnapKV, StreamingLLM
from kv_compression.prefill import Prefill, decode_step
from kv_compression.segment import Segment
from kv_compression.transformers_adapter import attach

__all__ = [
    "FORMAT_VERSION",
    "CodecError",
    "Full",
    "KVCache",
    "KVCompressionError",
    "LayerEntries",
    "Observation",
    "Policy",
    "Prefill",
    "Segment",
    "SnapKV",
    "StreamingLLM",
    "UnsupportedModelError",
    "attach",
    "decode_segment",
    "decode_step",
    "encode_segment",
]
