"""The order of touches, kept so that nothing ever stops for long."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import IntArray, column

CHUNK = 8192  # entries
_SLACK = 4  # chunks


class TouchQueue:
    """Rows in the order of their last touch, oldest first; each is in it at most once.

    A touch appends the row and makes its older entry stale, both vectorised. Entries stand in chunks; each chunk knows
    how many of its entries still count, so chunks of stale ones cost nothing, and whenever a chunk is begun two
    half-empty neighbours are joined. So there are at most twice the chunks that the rows need.
    """

    def __init__(self, max_rows: int) -> None:
        chunks = 2 * -(-max_rows // CHUNK) + 2 * _SLACK
        self._entries: npt.NDArray[np.int32] = column(chunks * CHUNK, np.int32)
        self._place: npt.NDArray[np.int32] = column(max_rows, np.int32)  # 1 + where the entry of a row is, 0: nowhere
        self._place_at = memoryview(self._place)
        self._live = np.zeros(chunks, np.int64)
        self._order: dict[int, int] = {}  # chunk: entries written; oldest first
        self._free = list(range(chunks - 1, -1, -1))
        self._size = 0
        self._filling = self._begin()

    def __len__(self) -> int:
        """Rows in the queue."""
        return self._size

    def __contains__(self, row: int) -> bool:
        return self._place_at[row] > 0

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks in use."""
        return len(self._order) * CHUNK * 4

    def append(self, rows: IntArray) -> None:
        """``rows`` (distinct) were touched just now, in this order."""
        self._forget(rows)
        done = 0
        while done < len(rows):
            fill = self._order[self._filling]
            count = min(len(rows) - done, CHUNK - fill)
            self._write(self._filling, fill, rows[done : done + count])
            done += count
            if fill + count == CHUNK:
                self._filling = self._begin()

    def discard(self, row: int) -> None:
        """``row`` leaves the queue, if it is in it."""
        place = self._place_at[row]
        if place:
            self._place_at[row] = 0
            self._live[(place - 1) // CHUNK] -= 1
            self._size -= 1

    def take(self) -> IntArray:
        """Takes out the rows of the oldest chunk, oldest first; empty: the queue is."""
        while self._size:
            chunk = next(iter(self._order))
            if chunk == self._filling:
                self._filling = self._begin()
            rows = self._end(chunk)
            if len(rows):
                return rows
        return np.empty(0, np.int64)

    def _write(self, chunk: int, fill: int, rows: IntArray) -> None:
        start = chunk * CHUNK + fill
        self._entries[start : start + len(rows)] = rows
        self._place[rows] = np.arange(start + 1, start + len(rows) + 1)
        self._live[chunk] += len(rows)
        self._order[chunk] = fill + len(rows)
        self._size += len(rows)

    def _forget(self, rows: IntArray) -> None:
        places = self._place[rows]
        places = places[places > 0]
        if places.size:
            self._live -= np.bincount((places - 1) // CHUNK, minlength=len(self._live))
            self._size -= places.size
            self._place[rows] = 0

    def _end(self, chunk: int) -> IntArray:
        """Takes a chunk apart; the rows that still had their entry in it."""
        start, fill = chunk * CHUNK, self._order.pop(chunk)
        rows: IntArray = self._entries[start : start + fill].astype(np.int64)
        rows = rows[self._place[rows] == np.arange(start + 1, start + fill + 1)]
        self._place[rows] = 0
        self._live[chunk] = 0
        self._size -= len(rows)
        self._free.append(chunk)
        return rows

    def _begin(self) -> int:
        """A new chunk at the end."""
        if len(self._order) * CHUNK > self._size + self._size // 4 + _SLACK * CHUNK:
            self._join()
        chunk = self._free.pop()
        self._order[chunk] = 0
        return chunk

    def _join(self) -> None:
        """Frees the chunks without live entries, and joins the two neighbours that hold the fewest, if they fit."""
        for chunk in [chunk for chunk in self._order if not self._live[chunk] and chunk != self._filling]:
            del self._order[chunk]
            self._free.append(chunk)
        order = list(self._order)
        both = self._live[order[:-2]] + self._live[order[1:-1]]  # the last one may be being filled
        if not both.size or both.min() > CHUNK:
            return
        at = int(both.argmin())
        older, newer = self._end(order[at]), self._end(order[at + 1])
        joined = self._free.pop()
        self._order = {chunk: self._order.get(chunk, 0) for chunk in (*order[:at], joined, *order[at + 2 :])}
        self._write(joined, 0, np.concatenate((older, newer)))
