"""Least recently used, deepest block first, among leaves: exact, and the yardstick for anything cleverer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from kvstore.tiers.columns import IntArray
from kvstore.tiers.eviction.order import LruOrder
from kvstore.tiers.eviction.policy import BlockTokens, Evictable, EvictionPolicy, Seconds
from kvstore.tiers.eviction.times import Times
from kvstore.tiers.index import BlockIndex
from kvstore.tiers.residence import TierRows


class Lru(EvictionPolicy):
    """One exact order for each tier."""

    name: ClassVar[str] = "lru"

    def __init__(self, index: BlockIndex, block_tokens: BlockTokens, tiers: Sequence[TierRows] = ()) -> None:
        super().__init__(index, block_tokens, tiers)
        self._orders = [LruOrder(index, tier) for tier in self.tiers]
        self._times = Times()

    def inserted(self, rows: IntArray, parent_row: int, request: int, appended_tokens: int, now: float) -> None:
        self.features.inserted(rows, parent_row, request, appended_tokens, now)
        self._orders[0].touch(rows)
        self._times.note(self._orders[0].last(int(rows[0])), now)

    def restored(self, rows: IntArray, ages: Seconds, now: float) -> None:
        self.features.restored(rows)
        for order in self._orders:
            order.restore(order.tier.among(rows))

    def touched(self, path: IntArray, request: int, now: float, chain_blocks: int) -> None:
        self.features.touched(path, request, now, chain_blocks)
        for order in self._orders:
            mine = order.tier.among(path)
            if len(mine):
                order.touch(mine)
                if order is self._orders[0]:
                    self._times.note(order.last(int(mine[0])), now)

    def removed(self, row: int) -> None:
        self.features.removed(row, 0.0)
        for order in self._orders:
            order.removed(row)

    def entered(self, rows: IntArray, tier: int) -> None:
        self._orders[tier].touch(rows)

    def left(self, row: int, tier: int) -> None:
        self._orders[tier].removed(row)

    def unpinned(self, row: int) -> None:
        for order in self._orders:
            order.unpinned(row)

    def victim(self, evictable: Evictable, tier: int = 0) -> int | None:
        return self._orders[tier].victim(evictable)

    def last_use(self, rows: IntArray, tier: int = 0) -> Seconds:
        return self._orders[tier].last_use(rows).astype(np.float64)

    def unused(self, row: int, now: float) -> float:
        """To the second, while there are few marks; in the first tier."""
        return max(0.0, now - self._times.of(self._orders[0].last(row), now))

    @property
    def nbytes(self) -> int:
        return self.features.nbytes + sum(order.nbytes for order in self._orders)
