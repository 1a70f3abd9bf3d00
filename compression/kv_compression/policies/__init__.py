"""The policies, one file each. `POLICIES` finds them by the name that settings and tables use."""

from kv_compression.policies.base import Policy
from kv_compression.policies.full import Full
from kv_compression.policies.keydiff import KeyDiff
from kv_compression.policies.knorm import Knorm
from kv_compression.policies.kvzip import KVzip
from kv_compression.policies.snapkv import SnapKV
from kv_compression.policies.streaming_llm import StreamingLLM
from kv_compression.policies.tova import TOVA

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (Full, SnapKV, StreamingLLM, TOVA, Knorm, KeyDiff, KVzip)
}

__all__ = ["POLICIES", "TOVA", "Full", "KVzip", "KeyDiff", "Knorm", "Policy", "SnapKV", "StreamingLLM"]
