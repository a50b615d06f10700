"""(namespace, key) → a number, in open addressing: each key has two buckets of 16 slots and lies in one of them."""

from __future__ import annotations

import mmap
import secrets
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.core.keys import KeyArray

SLOTS = 16  # of a bucket
SLOT_BYTES = 8 + 8 + 2 + 4
ABSENT = -1
_LOAD = 0.8  # of the slots in use when all entries are: two full buckets for one key are then very rare
_SPREAD = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_HALF = np.uint64(32)
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)

Places: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[np.uint32]


class KeyTable:
    """Room for ``max_entries`` keys, each with a number above 0. Nothing ever grows. Not locked.

    A place is the position of an entry in all columns, and stays until the entry is removed. Removing leaves no trace:
    there are no tombstones and nothing is ever rehashed.
    """

    def __init__(self, max_entries: int) -> None:
        self.buckets = -(-int(max_entries / _LOAD + 1) // SLOTS)
        self.slots = self.buckets * SLOTS
        self.low: npt.NDArray[np.uint64] = _column(self.slots, "u8")
        self.high: npt.NDArray[np.uint64] = _column(self.slots, "u8")
        self.namespace: npt.NDArray[np.uint16] = _column(self.slots, "u2")
        self.number: Numbers = _column(self.slots, "u4")  # 0: a free slot
        self._lows = self.low.reshape(-1, SLOTS)
        self._numbers = self.number.reshape(-1, SLOTS)
        self._factors = [np.uint64(secrets.randbits(63) * 2 + 1) for _ in range(2)]  # secret: nobody can crowd a bucket

    @property
    def nbytes(self) -> int:
        return self.slots * SLOT_BYTES

    def find(self, namespace: int, keys: KeyArray) -> Places:
        """The place of each key, -1 where absent."""
        places = self._in_bucket(namespace, keys, self._bucket(namespace, keys, 0))
        left = np.flatnonzero(places < 0)
        if left.size:
            keys = keys[left]
            places[left] = self._in_bucket(namespace, keys, self._bucket(namespace, keys, 1))
        return places

    def numbers(self, places: Places, namespace: int, keys: KeyArray) -> Numbers:
        """The number of each key whose place was found, maybe some time ago; 0 where it is not there (any more)."""
        there = (places >= 0) & self._is(places, namespace, keys)
        return np.where(there, self.number[places], np.uint32(0))

    def insert(self, namespace: int, keys: KeyArray, number: int) -> Places:
        """Places of distinct absent keys, each with ``number``; -1 where both buckets are full."""
        places = np.full(len(keys), ABSENT, np.int64)
        left = np.arange(len(keys))
        while left.size:
            mine = keys[left]
            buckets = self._emptier(self._bucket(namespace, mine, 0), self._bucket(namespace, mine, 1))
            _, firsts = np.unique(buckets, return_index=True)  # one a bucket in each round
            chosen, into = left[firsts], buckets[firsts]
            free = self._numbers[into] == 0
            slot = free.argmax(axis=1)
            fits = free[np.arange(len(into)), slot]
            at = into[fits] * SLOTS + slot[fits]
            chosen_keys = keys[chosen[fits]]
            self.low[at], self.high[at] = chosen_keys[:, 0], chosen_keys[:, 1]
            self.namespace[at], self.number[at] = namespace, number
            places[chosen[fits]] = at
            left = np.delete(left, firsts)
        return places

    def remove(self, places: Places) -> None:
        """Frees the slots of entries."""
        self.number[places] = 0

    def _bucket(self, namespace: int, keys: KeyArray, which: int) -> Places:
        mixed = (keys[:, which] ^ np.uint64((namespace + 1) * _SPREAD & _MASK)) * self._factors[which]
        buckets: Places = ((mixed >> _HALF) * np.uint64(self.buckets) >> _HALF).astype(np.int64)
        return buckets

    def _in_bucket(self, namespace: int, keys: KeyArray, buckets: Places) -> Places:
        alike = self._lows[buckets] == keys[:, :1]
        places: Places = buckets * SLOTS + alike.argmax(axis=1)
        wrong = np.flatnonzero(~self._is(places, namespace, keys))
        if wrong.size:
            places[wrong] = ABSENT
            who, slot = np.nonzero(alike[wrong])  # another key with this half, or one that was removed, is in front
            if who.size:
                at = buckets[wrong[who]] * SLOTS + slot
                same = self._is(at, namespace, keys[wrong[who]])
                places[wrong[who[same]]] = at[same]
        return places

    def _is(self, places: Places, namespace: int, keys: KeyArray) -> npt.NDArray[np.bool_]:
        """An entry at each place has the key there."""
        same: npt.NDArray[np.bool_] = (self.high[places] == keys[:, 1]) & (self.low[places] == keys[:, 0])
        same &= (self.number[places] != 0) & (self.namespace[places] == namespace)
        return same

    def _emptier(self, one: Places, other: Places) -> Places:
        """Of two buckets for each key the one with more free slots."""
        used = [np.count_nonzero(self._numbers[buckets], axis=1) for buckets in (one, other)]
        return np.where(used[0] <= used[1], one, other)


def _column(count: int, kind: str) -> npt.NDArray[Any]:
    """Zeros that cost nothing before they are touched."""
    dtype = np.dtype(kind)
    return np.frombuffer(mmap.mmap(-1, count * dtype.itemsize, flags=_FLAGS), dtype, count)
