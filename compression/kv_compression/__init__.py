"""KV-cache compression for transformers' decoders: caches that are really smaller, that can be stored and restored."""

from kv_compression.adapter import attach
from kv_compression.allocation import Allocation, HeadAdaptive, Profile, Pyramid, Uniform
from kv_compression.cache import LayerEntries
from kv_compression.codec import FORMAT_VERSION, decode_segment, encode_segment
from kv_compression.compressing import compress
from kv_compression.errors import CodecError, KVCompressionError, SegmentError, UnsupportedModelError
from kv_compression.kv_cache import KVCache
from kv_compression.layerwise import LayerwisePrefill
from kv_compression.observation import LayerObservation, Observation, QueryStatistics
from kv_compression.observer import Observer
from kv_compression.policies import (
    H2O,
    POLICIES,
    TOVA,
    Blend,
    CriticalKV,
    ExpectedAttention,
    FastGen,
    Full,
    KeyDiff,
    Knorm,
    KVzip,
    Policy,
    SnapKV,
    StreamingLLM,
)
from kv_compression.prefill import Prefill, decode_step
from kv_compression.profile import measure_profiles
from kv_compression.reconstruction import reconstruct
from kv_compression.renumber import renumbered
from kv_compression.segment import Segment, join
from kv_compression.storage import Storage
from kv_compression.together import Piece, run_together

__all__ = [
    "Allocation",
    "Blend",
    "CodecError",
    "CriticalKV",
    "ExpectedAttention",
    "FORMAT_VERSION",
    "FastGen",
    "Full",
    "H2O",
    "HeadAdaptive",
    "KVCache",
    "KVCompressionError",
    "KVzip",
    "KeyDiff",
    "Knorm",
    "LayerEntries",
    "LayerObservation",
    "LayerwisePrefill",
    "Observation",
    "QueryStatistics",
    "POLICIES",
    "Piece",
    "Policy",
    "Observer",
    "Prefill",
    "Profile",
    "Pyramid",
    "Segment",
    "SegmentError",
    "SnapKV",
    "Storage",
    "StreamingLLM",
    "TOVA",
    "Uniform",
    "UnsupportedModelError",
    "attach",
    "compress",
    "decode_segment",
    "decode_step",
    "encode_segment",
    "join",
    "measure_profiles",
    "reconstruct",
    "renumbered",
    "run_together",
]
