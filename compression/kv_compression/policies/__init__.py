"""The policies, one file each. `POLICIES` finds them by the name that settings and tables use."""

from kv_compression.policies.base import Policy
from kv_compression.policies.blend import Blend
from kv_compression.policies.criticalkv import CriticalKV
from kv_compression.policies.expected_attention import ExpectedAttention
from kv_compression.policies.fastgen import FastGen
from kv_compression.policies.full import Full
from kv_compression.policies.h2o import H2O
from kv_compression.policies.keydiff import KeyDiff
from kv_compression.policies.knorm import Knorm
from kv_compression.policies.kvzip import KVzip
from kv_compression.policies.snapkv import SnapKV
from kv_compression.policies.streaming_llm import StreamingLLM
from kv_compression.policies.tova import TOVA

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Full,
        SnapKV,
        StreamingLLM,
        H2O,
        FastGen,
        TOVA,
        Knorm,
        KeyDiff,
        ExpectedAttention,
        CriticalKV,
        KVzip,
        Blend,
    )
}

__all__ = [
    "H2O",
    "POLICIES",
    "TOVA",
    "Blend",
    "CriticalKV",
    "ExpectedAttention",
    "FastGen",
    "Full",
    "KVzip",
    "KeyDiff",
    "Knorm",
    "Policy",
    "SnapKV",
    "StreamingLLM",
]
