"""turnscore: keeps conversations that go on, lets one-shot documents and abandoned branches go.

    keep(leaf) = sqrt(references * (turn + 1)) / sqrt(1 + appended / 512 tokens) * sqrt(1 + depth / 30,500 tokens)
                 * (1 + importance / 65,536)^0.5 / (age + age constant)^3

Of 16 leaves taken at random the one worth least goes; leaves of abandoned branches go before any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from kvstore.tiers.columns import IntArray
from kvstore.tiers.eviction.features import NEVER, UNIT_TOKENS
from kvstore.tiers.eviction.policy import BlockTokens, Evictable, EvictionPolicy, Seconds
from kvstore.tiers.eviction.sampling import IMPORTANCE_SCALE, Facts, LeafOrder
from kvstore.tiers.index import READY, BlockIndex
from kvstore.tiers.residence import TierRows

COST_TOKENS = 512 / 0.0168  # recomputing a block this deep costs twice what the first one costs (attention)
_ABANDONED = 1e-3  # of its worth is left to a branch that somebody turned away from
_WALK = 16384  # blocks of an abandoned branch marked at once: some milliseconds


class TurnScore(EvictionPolicy):
    """See the module. ``seed`` makes the sampling repeatable; ``gaps.age_constant`` follows the store's return gaps."""

    name: ClassVar[str] = "turnscore"

    def __init__(
        self, index: BlockIndex, block_tokens: BlockTokens, tiers: Sequence[TierRows] = (), seed: int = 0
    ) -> None:
        super().__init__(index, block_tokens, tiers)
        self._facts = Facts(index.max_blocks, seed)
        self.gaps = self._facts.gaps
        self._orders = [LeafOrder(index, tier, self._facts) for tier in self.tiers]
        self._leaves, self._abandoned = self._orders[0].leaves, self._orders[0].abandoned
        self._start: float | None = None

    # --- learning -----------------------------------------------------------------------------------------

    def inserted(self, rows: IntArray, parent_row: int, request: int, appended_tokens: int, now: float) -> None:
        facts, order = self._facts, self._orders[0]
        now = self._tick(now)
        gap = self.features.inserted(rows, parent_row, request, appended_tokens, now)
        if gap != NEVER:
            self.gaps.add(gap)
        facts.last[rows] = now
        facts.dead[rows] = 0
        self._weigh(rows)
        if parent_row >= 0:
            order.leave(parent_row)
            self._revive(parent_row)
        last = int(rows[-1])
        if not order.tier.children_at[last]:
            order.enter(last)

    def restored(self, rows: IntArray, ages: Seconds, now: float) -> None:
        if not len(rows):
            return
        self._start = now - float(ages.max())
        self._facts.last[rows] = np.maximum(self._tick(now) - ages, 0.0)
        self.features.restored(rows)
        numbers = self.index.namespace[rows]
        for number in np.unique(numbers):
            self._weigh(rows[numbers == number])
        for order in self._orders:
            mine = order.tier.among(rows)
            for row in mine[order.tier.children[mine] == 0].tolist():
                order.enter(row)

    def touched(self, path: IntArray, request: int, now: float, chain_blocks: int) -> None:
        facts = self._facts
        now = self._tick(now)
        fresh = self.features.touched(path, request, now, chain_blocks)
        if not len(path):
            return
        last = int(path[-1])
        if fresh and self.index.children_at[last] <= 1:  # more children: a shared prompt, which says nothing
            self.gaps.add(now - facts.last_at[last])
        facts.last[path] = now
        self._weigh(path)
        for row in path[facts.dead[path] > 0].tolist():
            for order in self._orders:
                order.revive(row)
        facts.dead[path] = 0
        if chain_blocks > len(path) and self.index.children_at[last] == 1:
            self._abandon(self.index.first_child_at[last])

    def _tick(self, now: float) -> float:
        """Seconds since the first call: small numbers, which the ghost can keep in four bytes. Never goes back."""
        self._start = now if self._start is None else self._start
        self._facts.now = max(self._facts.now, now - self._start)
        return self._facts.now

    def _weigh(self, rows: IntArray) -> None:
        """Everything of the keep value but age, and importance, which the store may set at any time."""
        features, index = self.features, self.index
        tokens = features.block_tokens(index.namespace_at[rows[0]])
        value = features.references[rows] * (features.turn[rows] + np.float32(1))
        value *= 1 + index.block[rows] * np.float32(tokens / COST_TOKENS)
        value /= 1 + features.appended[rows] * np.float32(1 / UNIT_TOKENS)
        self._facts.weight[rows] = np.sqrt(value)

    def _abandon(self, row: int) -> None:
        """Somebody turned off where only ``row`` went on: it and what hangs on it alone will hardly be asked for."""
        index, dead = self.index, self._facts.dead_at
        for _ in range(_WALK):  # the end of a longer branch goes by its keep value
            if dead[row] or index.state_at[row] != READY or index.leases_at[row]:
                return
            for order in self._orders:
                order.abandon(row)
            dead[row] = 1
            if index.children_at[row] != 1:
                return
            row = index.first_child_at[row]

    def _revive(self, row: int) -> None:
        while row >= 0 and self._facts.dead_at[row]:
            for order in self._orders:
                order.revive(row)
            self._facts.dead_at[row] = 0
            row = self.index.parent_at[row]

    def removed(self, row: int) -> None:
        self.features.removed(row, self._facts.last_at[row])
        for order in self._orders:
            order.removed(row, order.tier.has(row))
        self._facts.dead_at[row] = 0

    # --- between tiers --------------------------------------------------------------------------------------

    def entered(self, rows: IntArray, tier: int) -> None:
        order = self._orders[tier]
        for row in rows.tolist():
            parent = self.index.parent_at[row]
            if parent >= 0:
                order.leave(parent)
            if not order.tier.children_at[row]:
                order.enter(row)

    def left(self, row: int, tier: int) -> None:
        self._orders[tier].removed(row, True)

    # --- choosing -------------------------------------------------------------------------------------------

    def unpinned(self, row: int) -> None:
        for order in self._orders:
            order.unpinned()

    def victim(self, evictable: Evictable, tier: int = 0) -> int | None:
        return self._orders[tier].victim(evictable)

    def last_use(self, rows: IntArray, tier: int = 0) -> Seconds:
        return self._facts.last[rows]

    def unused(self, row: int, now: float) -> float:
        return 0.0 if self._start is None else max(0.0, now - self._start - self._facts.last_at[row])

    def worth(self, rows: IntArray) -> Seconds:
        facts = self._facts
        value = facts.weight[rows] / (facts.now + facts.gaps.age_constant - facts.last[rows]) ** 3
        value *= np.sqrt(1 + self.index.importance[rows] / IMPORTANCE_SCALE)
        return np.where(facts.dead[rows] > 0, value * _ABANDONED, value)

    @property
    def nbytes(self) -> int:
        return self.features.nbytes + self.index.rows_used * 13 + sum(order.nbytes for order in self._orders)
