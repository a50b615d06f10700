"""Sets of leaf rows with O(1) entering, leaving and random choice."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import column


class LeafSet:
    """Rows in an array; ``place`` (shared by all sets of one policy) is 1 + where a row stands in the set it is in."""

    def __init__(self, limit: int, place: memoryview[int]) -> None:
        self.array: npt.NDArray[np.int32] = column(limit, np.int32)
        self.rows = memoryview(self.array)
        self.count = 0
        self.cursor = 0  # where a scan that is too long for one call goes on
        self._place = place

    def add(self, row: int) -> None:
        """``row`` enters; it is in no set."""
        self.rows[self.count] = row
        self.count += 1
        self._place[row] = self.count

    def discard(self, row: int) -> None:
        """``row``, which is in this set, leaves it; the last one takes its place."""
        at = self._place[row]
        last = self.rows[self.count - 1]
        self.rows[at - 1] = last
        self._place[last] = at
        self._place[row] = 0
        self.count -= 1
