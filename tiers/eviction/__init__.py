"""Eviction policies: which block goes when there is no room. Pure code; constants in tokens and seconds."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.core.errors import ConfigError
from kvstore.tiers.eviction.lru import Lru
from kvstore.tiers.eviction.policy import BlockTokens, EvictionPolicy
from kvstore.tiers.eviction.turnscore import TurnScore
from kvstore.tiers.index import BlockIndex
from kvstore.tiers.residence import TierRows

POLICIES: dict[str, type[EvictionPolicy]] = {policy.name: policy for policy in (Lru, TurnScore)}
DEFAULT_POLICY = TurnScore.name

__all__ = ["DEFAULT_POLICY", "POLICIES", "BlockTokens", "EvictionPolicy", "Lru", "TurnScore", "make_policy"]


def make_policy(
    name: str, index: BlockIndex, block_tokens: BlockTokens, tiers: Sequence[TierRows] = ()
) -> EvictionPolicy:
    """The policy called ``name``; without ``tiers`` of one that has all rows. Raises ConfigError."""
    if name not in POLICIES:
        raise ConfigError(f"eviction policy {name!r} does not exist; there are: {', '.join(POLICIES)}", got=name)
    return POLICIES[name](index, block_tokens, tiers)
