"""The order of one tier: exact least-recently-used among its leaves, in time that does not depend on their number."""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import IntArray, column
from kvstore.tiers.eviction.policy import Evictable
from kvstore.tiers.eviction.touches import TouchQueue
from kvstore.tiers.index import HARD_PIN, SOFT_PIN, BlockIndex
from kvstore.tiers.residence import TierRows

_FEW = 64  # so many parked rows are looked at on every call, more of them on every 16th


class LruOrder:
    """The leaf whose last touch is oldest goes; within one touch the deepest block counts as touched first.

    A queue holds every touch; an inner block that reaches its front leaves it, and comes back (through a heap) when
    its last child goes. Leaves and children are those of the tier.
    """

    def __init__(self, index: BlockIndex, tier: TierRows) -> None:
        self.index = index
        self.tier = tier
        self._stamp: npt.NDArray[np.uint64] = column(index.max_blocks, np.uint64)  # 0: not in this order
        self._stamp_at = memoryview(self._stamp)
        self._queue = TouchQueue(index.max_blocks)
        self._front: deque[tuple[int, int]] = deque()  # (stamp, row), taken off the queue
        self._back: list[tuple[int, int, int]] = []  # heap of (stamp, -block, row): came back
        self._parked: dict[int, int] = {}  # row: stamp, of those that may not go now
        self._soft: list[tuple[int, int, int]] = []  # heap like _back: soft-pinned
        self._soft_stamp: dict[int, int] = {}  # row: stamp, of what is in it
        self._clock = self._calls = 0
        self._given = (0, 0)  # the last victim

    def touch(self, rows: IntArray) -> None:
        """``rows`` of the tier, in chain order, were used just now, or enter it."""
        self._clock += 1
        self._stamp[rows] = self._clock
        self._queue.append(rows[::-1])

    def restore(self, rows: IntArray) -> None:
        """First of all: these rows are there, the longest unused first."""
        self._stamp[rows] = np.arange(self._clock + 1, self._clock + len(rows) + 1)
        self._clock += len(rows)
        self._queue.append(rows)

    def removed(self, row: int) -> None:
        """A row leaves the tier: called before its parent has one child less there. Nothing, if it is not in it."""
        if not self._stamp_at[row]:
            return
        self._stamp_at[row] = 0
        self._queue.discard(row)
        parent = self.index.parent_at[row]
        if parent < 0 or self.tier.children_at[parent] != 1 or parent in self._queue:
            return
        if self._stamp_at[parent]:
            self._come_back(parent)

    def unpinned(self, row: int) -> None:
        """As EvictionPolicy.unpinned."""
        if self._stamp_at[row] and row not in self._queue:
            self._come_back(row)

    def last_use(self, rows: IntArray) -> npt.NDArray[np.uint64]:
        """Larger: used later."""
        return self._stamp[rows]

    def last(self, row: int) -> int:
        """The same of one row."""
        return self._stamp_at[row]

    def _come_back(self, row: int) -> None:
        heapq.heappush(self._back, (self._stamp_at[row], -self.index.block_at[row], row))

    def victim(self, evictable: Evictable) -> int | None:
        """As EvictionPolicy.victim."""
        stamp, row = self._given
        if stamp and self._stamp_at[row] == stamp:  # it was not removed after all
            self._come_back(row)
        self._calls += 1
        if self._parked and (len(self._parked) <= _FEW or self._calls % 16 == 0):
            self._unpark(evictable)
        found = self._next(evictable)
        if found is None and len(self._parked) > _FEW:
            self._unpark(evictable)
            found = self._next(evictable)
        if found is None:
            found = self._next_soft(evictable)
        self._given = (0, 0) if found is None else (self._stamp_at[found], found)
        return found

    def _next(self, evictable: Evictable) -> int | None:
        stamp_at, children_at, pins_at = self._stamp_at, self.tier.children_at, self.index.pins_at
        while (entry := self._oldest()) is not None:
            stamp, row = entry
            if stamp_at[row] != stamp or children_at[row]:
                continue
            if pins_at[row] == SOFT_PIN:
                self._push_soft(stamp, row)
            elif pins_at[row] != HARD_PIN and evictable(row):
                return row
            else:
                self._parked[row] = stamp
        return None

    def _oldest(self) -> tuple[int, int] | None:
        """Takes the oldest entry of queue and heap."""
        if not self._front:
            self._refill()
        if self._back and (not self._front or self._back[0][:2] < self._rank(self._front[0])):
            stamp, _, row = heapq.heappop(self._back)
            return stamp, row
        if not self._front:
            return None
        return self._front.popleft()

    def _refill(self) -> None:
        """Takes a chunk with leaves off the queue; inner blocks leave it until they are leaves."""
        while not self._front and len(self._queue):
            rows = self._queue.take()
            rows = rows[self.tier.children[rows] == 0]
            self._front.extend(zip(self._stamp[rows].tolist(), rows.tolist(), strict=True))

    def _rank(self, entry: tuple[int, int]) -> tuple[int, int]:
        return entry[0], -self.index.block_at[entry[1]]

    def _unpark(self, evictable: Evictable) -> None:
        """What was parked and may go now, comes back; what became stale is forgotten."""
        kept: dict[int, int] = {}
        for row, stamp in self._parked.items():
            if self._stamp_at[row] != stamp:
                continue
            if not self.index.leases_at[row] and self.index.pins_at[row] != HARD_PIN and evictable(row):
                self._come_back(row)
            else:
                kept[row] = stamp
        self._parked = kept

    def _next_soft(self, evictable: Evictable) -> int | None:
        """The oldest soft-pinned leaf: only when nothing else is left."""
        skipped = []
        found = None
        while self._soft and found is None:
            stamp, _, row = heapq.heappop(self._soft)
            if self._soft_stamp.get(row) == stamp:
                del self._soft_stamp[row]
            if self._stamp_at[row] != stamp or self.tier.children_at[row]:
                continue
            if self.index.pins_at[row] != HARD_PIN and evictable(row):
                found = row
            else:
                skipped.append((stamp, row))
        for stamp, row in skipped:
            self._push_soft(stamp, row)
        return found

    def _push_soft(self, stamp: int, row: int) -> None:
        if self._soft_stamp.get(row) != stamp:
            self._soft_stamp[row] = stamp
            heapq.heappush(self._soft, (stamp, -self.index.block_at[row], row))

    @property
    def nbytes(self) -> int:
        """Bytes of memory behind it."""
        kept = len(self._front) + len(self._back) + len(self._parked) + len(self._soft)
        return self.index.rows_used * 12 + self._queue.nbytes + kept * 150
