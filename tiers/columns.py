"""Typed columns over anonymous memory that the kernel backs page by page as it is written."""

from __future__ import annotations

import mmap
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]  # row numbers, shape (n,)

FEW = 32  # below this many keys or rows plain integers are faster than numpy
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


def column(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """``count`` zeros, shape (count,). Reserves addresses only: untouched pages cost nothing and nothing ever grows."""
    kind = np.dtype(dtype)
    return np.frombuffer(mmap.mmap(-1, max(count * kind.itemsize, 1), flags=_FLAGS), dtype=kind, count=count)


def power_of_two(least: int) -> int:
    """The smallest power of two that is at least ``least``."""
    return 1 << max(least - 1, 0).bit_length()


class RowPool:
    """Numbers 0 to ``limit`` - 1 given out and taken back: last back, first out, so touched memory is reused.

    ``fresh`` is one past the highest number ever given out.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.fresh = 0
        self.used = 0
        self._array = column(limit, np.int32)
        self._back: memoryview[int] = memoryview(self._array)
        self._spare = 0

    def take(self) -> int:
        """One number. The caller has checked that ``used`` is below ``limit``."""
        self.used += 1
        if self._spare:
            self._spare -= 1
            return self._back[self._spare]
        self.fresh += 1
        return self.fresh - 1

    def take_many(self, count: int) -> IntArray:
        """``count`` numbers. The caller has checked that there are as many."""
        old = min(count, self._spare)
        new = count - old
        self._spare -= old
        rows = np.empty(count, np.int64)
        rows[:old] = self._array[self._spare : self._spare + old][::-1]
        rows[old:] = np.arange(self.fresh, self.fresh + new)
        self.fresh += new
        self.used += count
        return rows

    def give(self, row: int) -> None:
        """Takes ``row`` back."""
        self._back[self._spare] = row
        self._spare += 1
        self.used -= 1
