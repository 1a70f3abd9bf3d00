"""The archive: what a turn leaves for later turns, chosen without looking at its question."""

from dataclasses import dataclass

from app.settings import ArchiveKind
from kv_compression import Allocation, KVCache, Observation, Policy, Segment, join
from kv_compression.policies import CriticalKV, ExpectedAttention, Full, KeyDiff, Knorm

LEAST = 256
"""Positions per KV head that a turn may always leave: short turns stay whole."""


@dataclass(frozen=True)
class Archive:
    """kind: `full`, `working` (what the working cache holds, for the whole sequence), or the policy's name. keep: the
    fraction of a turn's positions that the policy keeps, shared among the heads by `allocation`."""

    kind: ArchiveKind
    keep: float
    allocation: Allocation

    @property
    def replaces(self) -> bool:
        """Whether a segment stands for the whole sequence, and not only for what its turn added."""
        return self.kind == "working"

    def policy(self, tokens: int) -> Policy:
        """What chooses from a turn of so many tokens."""
        budget = max(round(self.keep * tokens), LEAST)
        match self.kind:
            case "expected_attention":
                return CriticalKV(ExpectedAttention(budget, allocation=self.allocation))
            case "keydiff":
                return KeyDiff(budget, allocation=self.allocation)
            case "knorm":
                return Knorm(budget, allocation=self.allocation)
            case _:
                return Full()

    def segment(self, cache: KVCache, working: KVCache, observation: Observation, restored: int) -> Segment:
        """Of a turn: `cache` holds `restored` tokens of earlier turns and the prompt, `working` the answer behind it.

        What earlier turns left is never chosen from again.
        """
        if self.replaces:
            return working.segment(0)
        return join(self.choose(cache, observation, restored).segment(restored), working.segment(cache.length))

    def choose(self, cache: KVCache, observation: Observation, restored: int) -> KVCache:
        """A cache with what the policy keeps of the entries behind the first `restored` tokens, and all before them."""
        policy = self.policy(cache.length - restored)
        if isinstance(policy, CriticalKV) and not observation.projected:
            policy = policy.scorer
        return cache if policy.budget is None else cache.select(policy, observation, since=restored)
