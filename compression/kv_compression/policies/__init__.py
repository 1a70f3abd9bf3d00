"""The policies, one file each."""

from kv_compression.policies.base import LayerObservation, Observation, Policy
from kv_compression.policies.full import Full
from kv_compression.policies.snapkv import SnapKV
from kv_compression.policies.streaming_llm import StreamingLLM

__all__ = ["Full", "LayerObservation", "Observation", "Policy", "SnapKV", "StreamingLLM"]
