"""The leaves of one tier, and which of them is worth least."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import IntArray, column
from kvstore.tiers.eviction.gaps import ReturnGaps
from kvstore.tiers.eviction.leaves import LeafSet
from kvstore.tiers.eviction.policy import Evictable
from kvstore.tiers.index import HARD_PIN, NO_PIN, BlockIndex
from kvstore.tiers.residence import TierRows

SAMPLE = 16  # leaves compared for one victim
IMPORTANCE_SCALE = 65536
_ROUNDS = 8  # samples tried before all leaves are looked at
_SCAN = 65536  # leaves looked at in one step
_SCAN_LIMIT = 1 << 20  # and in one call
_TRUST_SOFT = 256  # victims for which the news that only soft-pinned leaves are left is good


class Facts:
    """What turnscore knows of rows, whatever tier they are in. ``dead`` 1: part of an abandoned branch."""

    def __init__(self, rows: int, seed: int) -> None:
        self.last: npt.NDArray[np.float64] = column(rows, np.float64)
        self.weight: npt.NDArray[np.float32] = column(rows, np.float32)
        self.dead: npt.NDArray[np.uint8] = column(rows, np.uint8)
        self.last_at: memoryview[float] = memoryview(self.last)
        self.weight_at: memoryview[float] = memoryview(self.weight)
        self.dead_at: memoryview[int] = memoryview(self.dead)
        self.gaps = ReturnGaps()
        self.now = 0.0
        self.random = random.Random(seed).random


class LeafOrder:
    """The leaves of a tier, those of abandoned branches apart. Each leaf is in one of the two sets."""

    def __init__(self, index: BlockIndex, tier: TierRows, facts: Facts) -> None:
        self.index, self.tier, self._facts = index, tier, facts
        self._place_at: memoryview[int] = memoryview(column(index.max_blocks, np.int32))
        self.leaves = LeafSet(index.max_blocks, self._place_at)
        self.abandoned = LeafSet(index.max_blocks, self._place_at)
        self._soft_left = 0

    def enter(self, row: int) -> None:
        """A member without children here, in no set, becomes a leaf."""
        (self.abandoned if self._facts.dead_at[row] else self.leaves).add(row)

    def leave(self, row: int) -> None:
        """A row is no leaf any more, if it was one."""
        if self._place_at[row]:
            (self.abandoned if self._facts.dead_at[row] else self.leaves).discard(row)

    def abandon(self, row: int) -> None:
        """A leaf, if it is one, goes before others; called before it is marked dead."""
        if self._place_at[row]:
            self.leaves.discard(row)
            self.abandoned.add(row)

    def revive(self, row: int) -> None:
        """The reverse; called before the mark goes."""
        if self._place_at[row]:
            self.abandoned.discard(row)
            self.leaves.add(row)

    def removed(self, row: int, member: bool) -> None:
        """A row leaves the tier, its parent may become a leaf: called before it has one child less."""
        self.leave(row)
        parent = self.index.parent_at[row]
        if member and parent >= 0 and self.tier.children_at[parent] == 1 and self.tier.has(parent):
            self.enter(parent)

    def unpinned(self) -> None:
        """As EvictionPolicy.unpinned."""
        self._soft_left = 0

    # --- choosing -----------------------------------------------------------------------------------------

    def victim(self, evictable: Evictable) -> int | None:
        """As EvictionPolicy.victim."""
        found = self._abandoned_victim(evictable)
        if found is None and self.leaves.count:
            found = self._sampled(evictable)
        return self._scanned(evictable) if found is None else found

    def _abandoned_victim(self, evictable: Evictable) -> int | None:
        rows, pins = self.abandoned.rows, self.index.pins_at
        for at in range(self.abandoned.count - 1, max(self.abandoned.count - 1 - SAMPLE, -1), -1):
            row = rows[at]
            if pins[row] == NO_PIN and evictable(row):
                return row
        return None

    def _sampled(self, evictable: Evictable) -> int | None:
        soft_too = self._soft_left > 0
        self._soft_left -= soft_too
        for _ in range(_ROUNDS):
            for _, _, row in sorted(self._sample(soft_too)):
                if evictable(row):
                    return row
            if self.leaves.count <= SAMPLE:  # they were all looked at
                break
        return None

    def _sample(self, soft_too: bool) -> list[tuple[int, float, int]]:
        """Up to 16 random leaves as (pin, keep value, row)."""
        facts, leaves, count, draw = self._facts, self.leaves.rows, self.leaves.count, self._facts.random
        weight, last, pins, importance = facts.weight_at, facts.last_at, self.index.pins_at, self.index.importance_at
        base = facts.now + facts.gaps.age_constant
        few = count <= SAMPLE
        picks = []
        for at in range(count if few else SAMPLE):
            row = leaves[at if few else int(draw() * count)]
            if not pins[row] or (soft_too and pins[row] != HARD_PIN):
                value = weight[row] / (base - last[row]) ** 3
                if importance[row]:
                    value *= math.sqrt(1 + importance[row] / IMPORTANCE_SCALE)
                picks.append((pins[row], value, row))
        return picks

    def _scanned(self, evictable: Evictable) -> int | None:
        """Looks at all leaves (in several calls if there are millions); a soft-pinned one only if there is no other."""
        soft: list[IntArray] = []
        for leaves in (self.abandoned, self.leaves):
            for rows in self._pieces(leaves):
                pinned = self.index.pins[rows] != NO_PIN
                plain = next((int(row) for row in rows[~pinned] if evictable(int(row))), None)
                if plain is not None:
                    return plain
                soft.append(rows[pinned])
        self._soft_left = _TRUST_SOFT
        return next((row for piece in soft for row in self._worst_first(piece) if evictable(row)), None)

    def _pieces(self, leaves: LeafSet) -> Iterator[IntArray]:
        """Leaves that have no lease and no hard pin."""
        start = leaves.cursor if _SCAN_LIMIT < leaves.count > leaves.cursor else 0
        end = min(start + _SCAN_LIMIT, leaves.count)
        leaves.cursor = end
        for at in range(start, end, _SCAN):
            rows = leaves.array[at : min(at + _SCAN, end)].astype(np.int64)
            yield rows[(self.index.leases[rows] == 0) & (self.index.pins[rows] != HARD_PIN)]

    def _worst_first(self, rows: IntArray) -> list[int]:
        facts = self._facts
        value = facts.weight[rows] / (facts.now + facts.gaps.age_constant - facts.last[rows]) ** 3
        worst: list[int] = rows[np.argsort(value, kind="stable")].tolist()
        return worst

    @property
    def nbytes(self) -> int:
        """Bytes of memory behind it."""
        return 4 * (self.leaves.count + self.abandoned.count + self.index.rows_used)
