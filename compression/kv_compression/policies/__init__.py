"""The policies, one file each. `POLICIES` finds them by the name that settings and tables use."""

from kv_compression.policies.base import Policy
from kv_compression.policies.full import Full
from kv_compression.policies.kvzip import KVzip
from kv_compression.policies.snapkv import SnapKV
from kv_compression.policies.streaming_llm import StreamingLLM

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Full, SnapKV, StreamingLLM, KVzip)}

__all__ = ["POLICIES", "Full", "KVzip", "Policy", "SnapKV", "StreamingLLM"]
