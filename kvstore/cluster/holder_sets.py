"""Sets of holders, each kept once: blocks of a chain mostly lie on the same nodes, so entries name a set by number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvstore.cluster.sink import DRAM, HBM, NVME

NOBODY = 0  # the number of the empty set
_ROW_BYTES = 8 + 400  # of a set: its count, and its four masks in a tuple, a list and a dict, at 64 nodes


class HolderSet(NamedTuple):
    """Bit n of a mask: node n. ``stale``: holders that a snapshot under way has not confirmed."""

    dram: int = 0
    nvme: int = 0
    hbm: int = 0
    stale: int = 0

    @property
    def anywhere(self) -> int:
        return self.dram | self.nvme | self.hbm

    @property
    def memory(self) -> int:
        """Those that have it in DRAM or HBM."""
        return self.dram | self.hbm

    def without(self, node: int) -> HolderSet:
        keep = ~(1 << node)
        return HolderSet(self.dram & keep, self.nvme & keep, self.hbm & keep, self.stale & keep)

    def having(self, node: int, tiers: int) -> HolderSet:
        """``node`` has it in ``tiers``, and in no others."""
        dram, nvme, hbm, stale = self.without(node)
        bit = 1 << node
        return HolderSet(
            dram | bit * bool(tiers & DRAM), nvme | bit * bool(tiers & NVME), hbm | bit * bool(tiers & HBM), stale
        )

    def doubted(self, node: int) -> HolderSet:
        """If ``node`` is a holder, that is to be confirmed."""
        return self._replace(stale=self.stale | (self.anywhere & 1 << node))

    def tiers(self, node: int) -> int:
        return (self.dram >> node & 1) * DRAM | (self.nvme >> node & 1) * NVME | (self.hbm >> node & 1) * HBM


EMPTY = HolderSet()


def nodes_of(mask: int) -> list[int]:
    """The numbers of the bits that are set, ascending."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found


class HolderSets:
    """Number → set, and how many entries have it. A number without entries is given out again.

    Past ``limit`` sets no new ones are made but ``anyway``: so that what is gone, or confirmed, can always be noted.
    Several numbers may mean the same set after all sets have changed at once; ``canonical`` names one of them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._sets: list[HolderSet] = [EMPTY]
        self._numbers: dict[HolderSet, int] = {EMPTY: NOBODY}
        self._counts: npt.NDArray[np.int64] = np.zeros(64, np.int64)
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._sets) - len(self._free)

    def __getitem__(self, number: int) -> HolderSet:
        return self._sets[number]

    @property
    def nbytes(self) -> int:
        """About the bytes of memory behind all sets."""
        return len(self._sets) * _ROW_BYTES

    def number(self, wanted: HolderSet, anyway: bool = False) -> int | None:
        """The number of a set; ``anyway``: made even past the limit. None: it would be one too many."""
        found = self._numbers.get(wanted)
        if found is not None:
            return found
        if len(self) > self.limit and not anyway:
            return None
        if self._free:
            found = self._free.pop()
            self._sets[found] = wanted
        else:
            found = len(self._sets)
            self._sets.append(wanted)
            if found == len(self._counts):
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._numbers[wanted] = found
        return found

    def count(self, number: int, change: int) -> None:
        """So many more entries (fewer: negative) have this set."""
        self._counts[number] += change
        if number != NOBODY and not self._counts[number]:
            self._forget(number)

    def counted(self) -> list[tuple[int, int]]:
        """Of each set that entries have: the mask of its nodes, and how many entries."""
        counts = self._counts[: len(self._sets)].tolist()
        return [(held.anywhere, count) for held, count in zip(self._sets, counts, strict=True) if count]

    def _forget(self, number: int) -> None:
        gone = self._sets[number]
        if self._numbers.get(gone) == number:
            del self._numbers[gone]
        self._sets[number] = EMPTY
        self._free.append(number)

    # --- all sets at once ----------------------------------------------------------------------------------

    def doubt(self, node: int) -> None:
        """All holdings of ``node`` are to be confirmed."""
        self._change({at: held.doubted(node) for at, held in self._holding(node)})

    def drop(self, node: int, doubted_only: bool = False) -> None:
        """``node`` holds nothing any more; ``doubted_only``: but what was confirmed."""
        bit = 1 << node
        held = [(at, one) for at, one in self._holding(node) if one.stale & bit or not doubted_only]
        self._change({at: one.without(node) for at, one in held})

    def canonical(self, number: int) -> int:
        """The number that stands for the same set."""
        return self._numbers[self._sets[number]]

    def _holding(self, node: int) -> list[tuple[int, HolderSet]]:
        bit = 1 << node
        return [(at, held) for at, held in enumerate(self._sets) if held.anywhere & bit]

    def _change(self, changed: dict[int, HolderSet]) -> None:
        for at, held in changed.items():
            if self._numbers.get(self._sets[at]) == at:
                del self._numbers[self._sets[at]]
            self._sets[at] = held
        for at, held in changed.items():
            self._numbers.setdefault(held, at)
