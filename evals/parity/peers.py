"""Which policy here is which press of kvpress, with the same parameters on both sides."""

from dataclasses import dataclass
from typing import Any

from kv_compression import (
    TOVA,
    ExpectedAttention,
    HeadAdaptive,
    KeyDiff,
    Knorm,
    KVzip,
    Policy,
    SnapKV,
    StreamingLLM,
)

CHUNK = 512
"""Tokens that KVzip repeats at a time."""


@dataclass(frozen=True)
class Peer:
    """A policy, and its press by class and arguments; an argument that is a press itself has a `class`, too.

    same_scale: the scores are the same numbers, not only the same order. control: the parameters differ on purpose, and
    the comparison is worth something only if it says so.
    """

    policy: Policy
    press: dict[str, Any]
    same_scale: bool = True
    control: bool = False

    def competing(self, layers: int, heads: int) -> int:
        """How many KV heads share a budget, in a model of so many layers and heads in each."""
        allocation = self.policy.allocation
        if not isinstance(allocation, HeadAdaptive):
            return 1
        return heads if allocation.over == "layer" else layers * heads


def peers(budget: int) -> dict[str, Peer]:
    """Row name -> what is compared, each at `budget` entries per KV head on average."""
    snapkv = {"class": "SnapKVPress", "window_size": 32, "kernel_size": 15}
    kvzip = {"class": "KVzipPress", "n_sink": 4, "chunk_size": CHUNK}
    expected = {"class": "ExpectedAttentionPress", "n_future_positions": 512, "n_sink": 4}
    by_layer, adaptive = HeadAdaptive("layer", floor=0.0), HeadAdaptive("layer", floor=0.2)
    return {
        "snapkv": Peer(SnapKV(budget), snapkv),
        "snapkv, window 64, kernel 5": Peer(SnapKV(budget, 64, 5), snapkv | {"window_size": 64, "kernel_size": 5}),
        "snapkv, heads compete": Peer(
            SnapKV(budget, allocation=adaptive), {"class": "AdaKVPress", "press": snapkv, "alpha_safeguard": 0.2}
        ),
        "streaming_llm": Peer(StreamingLLM(budget), {"class": "StreamingLLMPress", "n_sink": 4}, same_scale=False),
        "tova": Peer(TOVA(budget), {"class": "TOVAPress"}),
        "knorm": Peer(Knorm(budget), {"class": "KnormPress"}),
        "keydiff": Peer(KeyDiff(budget), {"class": "KeyDiffPress"}),
        "expected_attention": Peer(ExpectedAttention(budget), expected),
        "kvzip": Peer(KVzip(budget), kvzip),
        "kvzip, layer by layer": Peer(KVzip(budget, allocation=by_layer), kvzip | {"layerwise": True}),
        "control: kernel 15 and 13": Peer(SnapKV(budget), snapkv | {"kernel_size": 13}, control=True),
        "control: 512 and 64 ahead": Peer(
            ExpectedAttention(budget), expected | {"n_future_positions": 64}, control=True
        ),
    }
