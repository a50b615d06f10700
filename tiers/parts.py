"""The part table: where each part of each block lies, by tier."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import NoSpace
from kvstore.tiers.columns import FEW, IntArray, RowPool, column
from kvstore.tiers.tier import NO_SLOT, TierKind

NONE = -1
MAX_PARTS = 64  # of one block: the bits of the index's ``ready`` column


class PartTable:
    """One row per (block, part); the parts of one block form a list that starts in the index's ``first_part`` column.

    Columns, by part row: ``part`` u8, ``next`` i32, and for each tier t ``slot[t]`` u32 (granules, ``NO_SLOT``:
    not there) and ``generation[t]`` u32. ``…_at`` are memoryviews of the same memory, fast for single values.
    """

    def __init__(self, max_parts: int, first_part: npt.NDArray[np.int32]) -> None:
        self.max_parts = max_parts
        self.part: npt.NDArray[np.uint8] = column(max_parts, np.uint8)
        self.next: npt.NDArray[np.int32] = column(max_parts, np.int32)
        self.slot: list[npt.NDArray[np.uint32]] = [column(max_parts, np.uint32) for _ in TierKind]
        self.generation: list[npt.NDArray[np.uint32]] = [column(max_parts, np.uint32) for _ in TierKind]
        self.slot_at = [memoryview(one) for one in self.slot]
        self.generation_at = [memoryview(one) for one in self.generation]
        self._first = first_part
        self._first_at = memoryview(first_part)
        self._part_at, self._next_at = memoryview(self.part), memoryview(self.next)
        self._pool = RowPool(max_parts)

    def __len__(self) -> int:
        return self._pool.used

    @property
    def nbytes(self) -> int:
        """Bytes of memory behind the rows ever used."""
        return self._pool.fresh * (1 + 4 + 4 + 8 * len(self.slot))

    def add(self, rows: IntArray, part: int) -> IntArray:
        """A new part row for each block of ``rows`` (distinct), without slots. Raises NoSpace, all or none."""
        if not 0 <= part < MAX_PARTS:
            raise ValueError(f"part {part} is not 0 to {MAX_PARTS - 1}")
        if self._pool.used + len(rows) > self.max_parts:
            raise NoSpace(f"the part table is full: {self.max_parts} parts. Raise max_parts", limit=self.max_parts)
        if len(rows) == 1:
            return self._add_one(int(rows[0]), part)
        added = self._pool.take_many(len(rows))
        self.part[added] = part
        self.next[added] = self._first[rows]
        self._first[rows] = added
        for slot in self.slot:
            slot[added] = NO_SLOT
        return added

    def _add_one(self, row: int, part: int) -> IntArray:
        at = self._pool.take()
        self._part_at[at], self._next_at[at] = part, self._first_at[row]
        self._first_at[row] = at
        for slot in self.slot_at:
            slot[at] = NO_SLOT
        return np.array([at], np.int64)

    def find(self, row: int, part: int) -> int:
        """The row of ``part`` of one block, or -1."""
        at = self._first_at[row]
        while at >= 0 and self._part_at[at] != part:
            at = self._next_at[at]
        return at

    def find_many(self, rows: IntArray, part: int) -> IntArray:
        """The row of ``part`` of each block, -1 where it has none. ``rows`` holds no -1."""
        if len(rows) < FEW:
            return np.array([self.find(row, part) for row in rows.tolist()], np.int64)
        at = self._first[rows].astype(np.int64)
        while (wrong := np.flatnonzero((at >= 0) & (self.part[at] != part))).size:
            at[wrong] = self.next[at[wrong]]
        return at

    def of(self, row: int) -> list[int]:
        """All part rows of one block, the newest first."""
        found = []
        at = self._first_at[row]
        while at >= 0:
            found.append(at)
            at = self._next_at[at]
        return found

    def drop(self, row: int, part: int) -> bool:
        """Forgets one part of a block; its slots must have been freed. False if it has no such part."""
        at, before = self._first_at[row], NONE
        while at >= 0 and self._part_at[at] != part:
            at, before = self._next_at[at], at
        if at < 0:
            return False
        if before < 0:
            self._first_at[row] = self._next_at[at]
        else:
            self._next_at[before] = self._next_at[at]
        self._pool.give(at)
        return True

    def drop_all(self, row: int) -> None:
        """Forgets all parts of a block; their slots must have been freed."""
        at = self._first_at[row]
        while at >= 0:
            self._pool.give(at)
            at = self._next_at[at]
        self._first_at[row] = NONE
