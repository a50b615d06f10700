"""turnscore: keeps conversations that go on, lets one-shot documents and abandoned branches go.

    keep(leaf) = sqrt(references * (turn + 1)) / sqrt(1 + appended / 512 tokens) * sqrt(1 + depth / 30,500 tokens)
                 * (1 + importance / 65,536)^0.5 / (age + age constant)^3

Of 16 leaves taken at random the one worth least goes; leaves of abandoned branches go before any other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import IntArray, column
from kvstore.tiers.eviction.features import NEVER, UNIT_TOKENS
from kvstore.tiers.eviction.gaps import ReturnGaps
from kvstore.tiers.eviction.leaves import LeafSet
from kvstore.tiers.eviction.policy import BlockTokens, Evictable, EvictionPolicy, Seconds
from kvstore.tiers.index import HARD_PIN, NO_PIN, READY, BlockIndex

SAMPLE = 16  # leaves compared for one victim
COST_TOKENS = 512 / 0.0168  # recomputing a block this deep costs twice what the first one costs (attention)
IMPORTANCE_SCALE = 65536
_WALK = 16384  # blocks of an abandoned branch marked at once: some milliseconds
_ROUNDS = 8  # samples tried before all leaves are looked at
_SCAN = 65536  # leaves looked at in one step
_SCAN_LIMIT = 1 << 20  # and in one call
_TRUST_SOFT = 256  # victims for which the news that only soft-pinned leaves are left is good


class TurnScore(EvictionPolicy):
    """See the module. ``seed`` makes the sampling repeatable; ``gaps.age_constant`` follows the store's return gaps."""

    name: ClassVar[str] = "turnscore"

    def __init__(self, index: BlockIndex, block_tokens: BlockTokens, seed: int = 0) -> None:
        super().__init__(index, block_tokens)
        self.gaps = ReturnGaps()
        rows = index.max_blocks
        self._last: npt.NDArray[np.float64] = column(rows, np.float64)
        self._weight: npt.NDArray[np.float32] = column(rows, np.float32)
        self._dead: npt.NDArray[np.uint8] = column(rows, np.uint8)  # 1: part of an abandoned branch
        self._last_at, self._weight_at, self._dead_at = (
            memoryview(self._last), memoryview(self._weight), memoryview(self._dead),
        )  # fmt: skip
        self._place_at: memoryview[int] = memoryview(column(rows, np.int32))
        self._leaves = LeafSet(rows, self._place_at)
        self._abandoned = LeafSet(rows, self._place_at)
        self._start: float | None = None
        self._now = 0.0
        self._random = random.Random(seed).random
        self._soft_left = 0

    # --- learning -----------------------------------------------------------------------------------------

    def inserted(self, rows: IntArray, parent_row: int, request: int, appended_tokens: int, now: float) -> None:
        now = self._tick(now)
        gap = self.features.inserted(rows, parent_row, request, appended_tokens, now)
        if gap != NEVER:
            self.gaps.add(gap)
        self._last[rows] = now
        self._dead[rows] = 0
        self._weigh(rows)
        if parent_row >= 0:
            self._leave(parent_row)
            self._revive(parent_row)
        last = int(rows[-1])
        if not self.index.children_at[last]:
            self._leaves.add(last)

    def restored(self, rows: IntArray, ages: Seconds, now: float) -> None:
        if not len(rows):
            return
        self._start = now - float(ages.max())
        self._last[rows] = np.maximum(self._tick(now) - ages, 0.0)
        self.features.restored(rows)
        numbers = self.index.namespace[rows]
        for number in np.unique(numbers):
            self._weigh(rows[numbers == number])
        for row in rows[self.index.children[rows] == 0].tolist():
            self._leaves.add(row)

    def touched(self, path: IntArray, request: int, now: float, chain_blocks: int) -> None:
        now = self._tick(now)
        fresh = self.features.touched(path, request, now, chain_blocks)
        if not len(path):
            return
        last = int(path[-1])
        if fresh and self.index.children_at[last] <= 1:  # more children: a shared prompt, which says nothing
            self.gaps.add(now - self._last_at[last])
        self._last[path] = now
        self._weigh(path)
        if self._place_at[last] and self._dead_at[last]:
            self._abandoned.discard(last)
            self._leaves.add(last)
        self._dead[path] = 0
        if chain_blocks > len(path) and self.index.children_at[last] == 1:
            self._abandon(self.index.first_child_at[last])

    def _tick(self, now: float) -> float:
        """Seconds since the first call: small numbers, which the ghost can keep in four bytes. Never goes back."""
        self._start = now if self._start is None else self._start
        self._now = max(self._now, now - self._start)
        return self._now

    def _weigh(self, rows: IntArray) -> None:
        """Everything of the keep value but age, and importance, which the store may set at any time."""
        features, index = self.features, self.index
        tokens = features.block_tokens(index.namespace_at[rows[0]])
        value = features.references[rows] * (features.turn[rows] + np.float32(1))
        value *= 1 + index.block[rows] * np.float32(tokens / COST_TOKENS)
        value /= 1 + features.appended[rows] * np.float32(1 / UNIT_TOKENS)
        self._weight[rows] = np.sqrt(value)

    def _abandon(self, row: int) -> None:
        """Somebody turned off where only ``row`` went on: it and what hangs on it alone will hardly be asked for."""
        index, dead = self.index, self._dead_at
        for _ in range(_WALK):  # the end of a longer branch goes by its keep value
            if dead[row] or index.state_at[row] != READY or index.leases_at[row]:
                return
            if not index.children_at[row]:
                self._leaves.discard(row)
                self._abandoned.add(row)
            dead[row] = 1
            if index.children_at[row] != 1:
                return
            row = index.first_child_at[row]

    def _revive(self, row: int) -> None:
        while row >= 0 and self._dead_at[row]:
            self._dead_at[row] = 0
            row = self.index.parent_at[row]

    def _leave(self, row: int) -> None:
        if self._place_at[row]:
            (self._abandoned if self._dead_at[row] else self._leaves).discard(row)

    def removed(self, row: int) -> None:
        self.features.removed(row, self._last_at[row])
        self._leave(row)
        self._dead_at[row] = 0
        parent = self.index.parent_at[row]
        if parent >= 0 and self.index.children_at[parent] == 1:
            (self._abandoned if self._dead_at[parent] else self._leaves).add(parent)

    def unpinned(self, row: int) -> None:
        self._soft_left = 0

    # --- choosing -----------------------------------------------------------------------------------------

    def victim(self, evictable: Evictable) -> int | None:
        found = self._abandoned_victim(evictable)
        if found is None and self._leaves.count:
            found = self._sampled(evictable)
        return self._scanned(evictable) if found is None else found

    def _abandoned_victim(self, evictable: Evictable) -> int | None:
        rows, pins = self._abandoned.rows, self.index.pins_at
        for at in range(self._abandoned.count - 1, max(self._abandoned.count - 1 - SAMPLE, -1), -1):
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
            if self._leaves.count <= SAMPLE:  # they were all looked at
                break
        return None

    def _sample(self, soft_too: bool) -> list[tuple[int, float, int]]:
        """Up to 16 random leaves as (pin, keep value, row)."""
        leaves, count, draw = self._leaves.rows, self._leaves.count, self._random
        weight, last, pins, importance = self._weight_at, self._last_at, self.index.pins_at, self.index.importance_at
        base = self._now + self.gaps.age_constant
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
        for leaves in (self._abandoned, self._leaves):
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
        value = self._weight[rows] / (self._now + self.gaps.age_constant - self._last[rows]) ** 3
        worst: list[int] = rows[np.argsort(value, kind="stable")].tolist()
        return worst

    @property
    def nbytes(self) -> int:
        sets = 4 * (self._leaves.count + self._abandoned.count)
        return self.features.nbytes + self.index.rows_used * 17 + sets
