"""Registered memory that transfers go through, handed out in runs of 1 MiB.

The other side of a one-sided transfer cannot be stopped at a deadline. So nothing but an arena is ever written to by
one: a caller's buffers, and a node's slots, get copies of what has arrived and passed its check. An overdue
transfer keeps its piece of the arena until it has ended.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import DeadlineExceeded, Unsupported

UNIT = 1 << 20


class Slab:
    """A piece of an arena: ``array`` lies at ``address``."""

    __slots__ = ("_give", "address", "array")

    def __init__(self, array: npt.NDArray[np.uint8], address: int, give: Callable[[], None]) -> None:
        self.array = array
        self.address = address
        self._give = give

    def give_back(self) -> None:
        """Nobody reads or writes it any more."""
        self._give()


class Arena:
    """First fit from the bottom, so that memory that was touched is touched again. Safe for threads."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self._map.madvise(getattr(mmap, "MADV_DONTFORK", 10))
        self.array = np.frombuffer(self._map, dtype=np.uint8)
        self.address = int(self.array.__array_interface__["data"][0])
        self.size = size
        self._used = [False] * (size // UNIT)
        self._changed = threading.Condition(threading.Lock())

    def take(self, size: int, deadline: float) -> Slab:
        """At least ``size`` bytes. Raises DeadlineExceeded, or Unsupported when it is larger than the arena."""
        units = max(1, -(-size // UNIT))
        if units > len(self._used):
            raise Unsupported(
                f"{size} bytes have to arrive at once, the transport's memory has {self.size}; use transport='tcp', or "
                "a namespace with smaller layers"
            )
        with self._changed:
            while (first := first_fit(self._used, units)) < 0:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise DeadlineExceeded("the transport's memory was in use until the deadline")
            self._used[first : first + units] = [True] * units
        start = first * UNIT
        array = self.array[start : start + units * UNIT]
        return Slab(array, self.address + start, lambda: self._free(first, units))

    def _free(self, first: int, units: int) -> None:
        with self._changed:
            self._used[first : first + units] = [False] * units
            self._changed.notify_all()


def first_fit(used: list[bool], units: int) -> int:
    """Where ``units`` neighbours are free; -1: nowhere."""
    run = 0
    for index, taken in enumerate(used):
        run = 0 if taken else run + 1
        if run == units:
            return index - units + 1
    return -1
