"""What is remembered of evicted blocks: 20 bytes an entry, oldest forgotten first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import IntArray, column, power_of_two

_WAYS = 8
_WAY_BITS = 3
_FACTOR = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


class Ghost:
    """Table from a 64-bit tag to a value above 0 and a time, for about ``entries`` of them.

    A tag has one bucket of eight places; what was put there first makes room.
    """

    def __init__(self, entries: int) -> None:
        buckets = power_of_two(-(-entries // _WAYS))
        self.entries = buckets * _WAYS
        self._shift = 64 - (buckets.bit_length() - 1)
        self._tags: npt.NDArray[np.uint64] = column(self.entries, np.uint64)
        self._values: npt.NDArray[np.uint32] = column(self.entries, np.uint32)
        self._times: npt.NDArray[np.float32] = column(self.entries, np.float32)
        self._order: npt.NDArray[np.uint32] = column(self.entries, np.uint32)
        self._tag_at, self._value_at = memoryview(self._tags), memoryview(self._values)
        self._time_at: memoryview[float] = memoryview(self._times)
        self._order_at = memoryview(self._order)
        self._puts = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the whole table."""
        return self.entries * 20

    def put(self, tag: int, value: int, time: float) -> None:
        """Remembers ``value`` and ``time`` for ``tag``, instead of what was known of it."""
        base = ((tag * _FACTOR & _MASK) >> self._shift) << _WAY_BITS
        tags = self._tag_at[base : base + _WAYS].tolist()
        if tag in tags:
            at = base + tags.index(tag)
        else:
            order = self._order_at[base : base + _WAYS].tolist()
            at = base + order.index(min(order))
        self._puts = self._puts % 0xFFFFFFFF + 1
        self._tag_at[at], self._value_at[at], self._time_at[at], self._order_at[at] = tag, value, time, self._puts

    def take(self, tags: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
        """Value and time of each tag as ``find``, and forgets them."""
        at = self._places(tags)
        found = at >= 0
        values, times = np.where(found, self._values[at], 0), self._times[at]
        self._order[at[found]] = self._tags[at[found]] = 0
        return values.astype(np.uint32), times

    def find(self, tags: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """The value of each tag, 0 where none is known."""
        at = self._places(tags)
        return np.where(at >= 0, self._values[at], 0).astype(np.uint32)

    def _places(self, tags: npt.NDArray[np.uint64]) -> IntArray:
        if self._shift == 64:
            base = np.zeros(len(tags), np.int64)
        else:
            base = ((tags * np.uint64(_FACTOR)) >> np.uint64(self._shift)).astype(np.int64) << _WAY_BITS
        equal = self._tags[base[:, None] + np.arange(_WAYS)] == tags[:, None]
        return np.where(equal.any(axis=1), base + equal.argmax(axis=1), -1)
