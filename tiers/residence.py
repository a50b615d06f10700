"""Which blocks are in which tier: what the index does not say of a store with more than one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import IntArray, column
from kvstore.tiers.index import BlockIndex
from kvstore.tiers.tier import TierKind


@dataclass(frozen=True, slots=True)
class TierRows:
    """The rows of one tier as an eviction policy sees them. ``children``: by row, those of its children in the tier.

    ``member`` None: every row is in it.
    """

    children: npt.NDArray[np.int32]
    children_at: memoryview[int]
    member: npt.NDArray[np.uint8] | None = None
    bit: int = 0

    def among(self, rows: IntArray) -> IntArray:
        """Those of ``rows`` that are in the tier, in their order."""
        return rows if self.member is None else rows[self.member[rows] & np.uint8(self.bit) != 0]

    def has(self, row: int) -> bool:
        """The row is in the tier."""
        return self.member is None or bool(self.member[row] & self.bit)


def every_row(index: BlockIndex) -> TierRows:
    """Of a store with one tier: all rows."""
    return TierRows(index.children, index.children_at)


class Residence:
    """Columns by row, all zero for a row that is in no tier; guarded by the store's lock.

    ``parts[tier]`` u64: bit p, part p can be read there. A row is a member of a tier from when it gets slots there
    until it leaves: members are what the tier's eviction order is over, and ``children[tier]`` counts them.
    """

    def __init__(self, index: BlockIndex, tiers: Sequence[TierKind]) -> None:
        self._index = index
        self.tiers = tuple(tiers)
        self.parts: dict[TierKind, npt.NDArray[np.uint64]] = {t: column(index.max_blocks, np.uint64) for t in tiers}
        self.parts_at: dict[TierKind, memoryview[int]] = {t: memoryview(self.parts[t]) for t in tiers}
        self.member: npt.NDArray[np.uint8] = column(index.max_blocks, np.uint8)
        self.member_at: memoryview[int] = memoryview(self.member)
        self.children: dict[TierKind, npt.NDArray[np.int32]] = {t: column(index.max_blocks, np.int32) for t in tiers}
        self._children_at: dict[TierKind, memoryview[int]] = {t: memoryview(self.children[t]) for t in tiers}

    @property
    def nbytes(self) -> int:
        """Bytes of memory behind the rows ever used."""
        return self._index.rows_used * (1 + 12 * len(self.tiers))

    def rows(self, tier: TierKind) -> TierRows:
        """A tier as its eviction order sees it."""
        return TierRows(self.children[tier], self._children_at[tier], self.member, 1 << tier)

    def has(self, row: int, tier: TierKind) -> bool:
        """The row is a member of the tier."""
        return bool(self.member_at[row] >> tier & 1)

    def enter(self, rows: IntArray, tier: TierKind) -> None:
        """Rows (distinct, no members yet) become members; the policy is told afterwards."""
        self.member[rows] |= np.uint8(1 << tier)
        parents = self._index.parent[rows]
        np.add.at(self.children[tier], parents[parents >= 0], 1)

    def leave(self, row: int, tier: TierKind) -> None:
        """A member ceases to be one; the policy was told before. Its parts there are not touched."""
        self.member_at[row] &= ~(1 << tier)
        parent = self._index.parent_at[row]
        if parent >= 0:
            self._children_at[tier][parent] -= 1
