"""Exact least-recently-used among leaves, in time that does not depend on the number of blocks."""

from __future__ import annotations

import heapq
from collections import deque
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import IntArray, column
from kvstore.tiers.eviction.policy import BlockTokens, Evictable, EvictionPolicy
from kvstore.tiers.index import HARD_PIN, SOFT_PIN, BlockIndex

CHUNK = 8192  # entries
_FRONT = 256  # entries taken off the queue at once
_FEW = 64  # so many parked rows are looked at on every call, more of them on every 16th
_ENTRY_BYTES = 12


class TouchQueue:
    """Rows in the order of their touches, oldest first. An entry is stale when its row has a newer stamp.

    Appending is vectorised; stale entries are swept out a chunk at a time while touches come in, so the queue holds
    at most about two entries a row and nothing ever stops for long.
    """

    def __init__(self, stamps: npt.NDArray[np.uint64]) -> None:
        self._stamps = stamps
        self._chunks: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]] = []
        self._room: tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]] = _chunk()
        self._fill = 0  # entries in the chunk being filled
        self.entries = 0
        self._appended = 0  # since the last sweep
        self._cursor = 0

    def append(self, rows: IntArray, stamp: int, live: int) -> None:
        """``rows``, oldest first, were touched at ``stamp``. ``live``: how many rows are in use at all."""
        done = 0
        while done < len(rows):
            count = min(len(rows) - done, CHUNK - self._fill)
            self._room[0][self._fill : self._fill + count] = rows[done : done + count]
            self._room[1][self._fill : self._fill + count] = stamp
            done, self._fill = done + count, self._fill + count
            if self._fill == CHUNK:
                self._chunks.append(self._room)
                self._room, self._fill = _chunk(), 0
        self.entries += done
        self._appended += done
        while self._appended >= CHUNK // 2:
            self._appended -= CHUNK // 2
            if self.entries > 2 * live + 4 * CHUNK:
                self._sweep()

    def take(self) -> list[tuple[int, int]]:
        """The oldest live entries as (stamp, row), some hundred at most; empty: there are none."""
        while self.entries:
            if not self._chunks:
                self._chunks.append((self._room[0][: self._fill].copy(), self._room[1][: self._fill].copy()))
                self._fill = 0
            rows, stamps = self._chunks[0]
            self.entries -= min(len(rows), _FRONT)
            if len(rows) > _FRONT:
                self._chunks[0] = (rows[_FRONT:], stamps[_FRONT:])
            else:
                self._chunks.pop(0)
                self._cursor = max(self._cursor - 1, 0)
            rows, stamps = rows[:_FRONT], stamps[:_FRONT]
            live = self._stamps[rows] == stamps
            if live.any():
                return list(zip(stamps[live].tolist(), rows[live].tolist(), strict=True))
        return []

    def _sweep(self) -> None:
        """Drops the stale entries of the next chunk, and joins it with the one before if both fit into one."""
        if self._cursor >= len(self._chunks):
            self._cursor = 0
        if not self._chunks:
            return
        rows, stamps = self._chunks[self._cursor]
        live = self._stamps[rows] == stamps
        self.entries -= len(rows) - int(live.sum())
        kept = (rows[live], stamps[live])
        before = self._chunks[self._cursor - 1] if self._cursor else None
        if before is not None and len(before[0]) + len(kept[0]) <= CHUNK:
            joined = (np.concatenate((before[0], kept[0])), np.concatenate((before[1], kept[1])))
            self._chunks[self._cursor - 1 : self._cursor + 1] = [joined]
        else:
            self._chunks[self._cursor] = kept
            self._cursor += 1

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks."""
        return self.entries * _ENTRY_BYTES + (CHUNK - self._fill) * _ENTRY_BYTES


def _chunk() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
    return np.empty(CHUNK, np.int32), np.empty(CHUNK, np.uint64)


class Lru(EvictionPolicy):
    """The leaf whose last touch is oldest goes; within one touch the deepest block counts as touched first.

    A queue holds every touch; an inner block that reaches its front leaves it, and comes back (through a heap) when
    its last child goes.
    """

    name: ClassVar[str] = "lru"

    def __init__(self, index: BlockIndex, block_tokens: BlockTokens) -> None:
        super().__init__(index, block_tokens)
        self._stamp: npt.NDArray[np.uint64] = column(index.max_blocks, np.uint64)  # 0: not known
        self._queued: npt.NDArray[np.uint8] = column(index.max_blocks, np.uint8)  # its entry is still in the queue
        self._stamp_at, self._queued_at = memoryview(self._stamp), memoryview(self._queued)
        self._queue = TouchQueue(self._stamp)
        self._front: deque[tuple[int, int]] = deque()  # (stamp, row), taken off the queue
        self._back: list[tuple[int, int, int]] = []  # heap of (stamp, -block, row): came back
        self._parked: dict[int, int] = {}  # row: stamp, of those that may not go now
        self._soft: list[tuple[int, int, int]] = []  # heap like _back: soft-pinned
        self._soft_stamp: dict[int, int] = {}  # row: stamp, of what is in it
        self._clock = self._calls = 0
        self._given = (0, 0)  # the last victim

    def inserted(self, rows: IntArray, parent_row: int, request: int, appended_tokens: int, now: float) -> None:
        self.features.inserted(rows, parent_row, request, appended_tokens, now)
        self._touch(rows)

    def touched(self, path: IntArray, request: int, now: float, chain_blocks: int) -> None:
        self.features.touched(path, request, now, chain_blocks)
        if len(path):
            self._touch(path)

    def _touch(self, rows: IntArray) -> None:
        self._clock += 1
        self._stamp[rows] = self._clock
        self._queued[rows] = 1
        self._queue.append(rows[::-1], self._clock, len(self.index))

    def removed(self, row: int) -> None:
        self.features.removed(row, 0.0)
        self._stamp_at[row] = 0
        parent = self.index.parent_at[row]
        if parent >= 0 and self.index.children_at[parent] == 1 and not self._queued_at[parent]:
            self._come_back(parent)

    def unpinned(self, row: int) -> None:
        if self._stamp_at[row] and not self._queued_at[row]:
            self._come_back(row)

    def _come_back(self, row: int) -> None:
        heapq.heappush(self._back, (self._stamp_at[row], -self.index.block_at[row], row))

    def victim(self, evictable: Evictable) -> int | None:
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
        stamp_at, children_at, pins_at = self._stamp_at, self.index.children_at, self.index.pins_at
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
            self._front.extend(self._queue.take())
        if self._back and (not self._front or self._back[0][:2] < self._rank(self._front[0])):
            stamp, _, row = heapq.heappop(self._back)
            return stamp, row
        if not self._front:
            return None
        stamp, row = self._front.popleft()
        if self._stamp_at[row] == stamp:
            self._queued_at[row] = 0
        return stamp, row

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
            if self._stamp_at[row] != stamp or self.index.children_at[row]:
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
        kept = len(self._front) + len(self._back) + len(self._parked) + len(self._soft)
        return self.features.nbytes + self.index.rows_used * 9 + self._queue.nbytes + kept * 150
