"""The scrubber of DRAM: checks blocks at rest at a bounded rate, so that decay is found before a reader finds it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np

from kvstore.core.checksum import Chunking, chunk_sums, part_seed
from kvstore.tiers.index import READY
from kvstore.tiers.state import State
from kvstore.tiers.tier import NO_SLOT, TierKind

log = logging.getLogger(__name__)
_SCAN = 65_536  # rows looked at in one step
_CATCH_UP = 1.0  # seconds of unused rate that are caught up at most
DRAM = TierKind.DRAM


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a block where it lay when it was looked at."""

    at: int  # part row
    part: int
    slot: int
    generation: int
    cut: Chunking


class Scrubber:
    """``step`` is called again and again by a thread of the store; it takes the lock itself, for short times.

    A block is read without a hold: only when it seems bad it is held and read again, so that what merely changed
    meanwhile is no finding, and readers and evictions never meet a hold of the scrubber otherwise.
    """

    def __init__(self, state: State, rate: int, interval: float) -> None:
        """``rate``: bytes a second. ``interval``: seconds from the start of one pass to the next, and to the first."""
        self._state = state
        self._rate = rate
        self._interval = interval
        self._begin = time.monotonic() + interval
        self._due = 0.0
        self._cursor = 0
        self.passes = 0

    def step(self) -> float:
        """Checks one block; seconds until the next."""
        now = time.monotonic()
        if now < self._begin:
            return self._begin - now
        size = self._next()
        if size is None:
            self.passes += 1
            self._cursor = 0
            self._begin += max(self._interval, now - self._begin)
            return max(0.0, self._begin - now)
        self._due = max(self._due, now - _CATCH_UP) + size / self._rate
        return max(0.0, self._due - time.monotonic())

    def scrub_all(self) -> int:
        """One pass as fast as it goes; how many blocks failed."""
        before = self._state.counters["scrub_failed_blocks"]
        self._cursor = 0
        while self._next() is not None:
            pass
        self._cursor = 0
        return self._state.counters["scrub_failed_blocks"] - before

    def _next(self) -> int | None:
        """Checks the next block; its bytes, or None at the end."""
        index = self._state.index
        while self._cursor < index.rows_used:
            stop = min(self._cursor + _SCAN, index.rows_used)
            ready = index.state[self._cursor : stop] == READY
            first = int(ready.argmax())
            if ready[first]:
                row = self._cursor + first
                self._cursor = row + 1
                return self._check(row)
            self._cursor = stop
        return None

    def _check(self, row: int) -> int:
        with self._state.lock:
            key, parts = self._parts(row)
        if any(not self._sound(key, part) for part in parts) and self._still_bad(row, key, parts):
            self._drop(row, key)
        else:
            self._passed(row, key, parts)
        size = sum(part.cut.length for part in parts)
        with self._state.lock:
            self._state.counters["scrubbed_blocks"] += bool(parts)
            self._state.counters["scrubbed_bytes"] += size
        return size

    def _parts(self, row: int) -> tuple[bytes, list[_Part]]:
        """Under the lock: the READY parts of a block that lie in DRAM."""
        state, index, table = self._state, self._state.index, self._state.index.parts
        if index.state_at[row] != READY:
            return b"", []
        cuts, ready, found = state.namespace_of(row).cuts, index.ready_at[row], []
        for at in table.of(row):
            part, slot = int(table.part[at]), table.slot_at[DRAM][at]
            if slot != NO_SLOT and ready >> part & 1:
                found.append(_Part(at, part, slot, table.generation_at[DRAM][at], cuts[part]))
        return index.key(row), found

    def _sound(self, key: bytes, part: _Part) -> bool:
        dram = self._state.dram
        stored = dram.checksums(np.array([part.slot], np.uint32), range(part.cut.count))[0]
        sums = chunk_sums(dram.view(part.slot, part.cut.length), part_seed(key, part.part), part.cut)
        return bool((stored == sums).all())

    def _same(self, row: int, key: bytes, parts: list[_Part]) -> bool:
        return self._parts(row) == (key, parts)

    def _still_bad(self, row: int, key: bytes, parts: list[_Part]) -> bool:
        """Looks again at a block that nobody can change meanwhile."""
        state, held = self._state, np.array([row])
        with state.lock:
            if not self._same(row, key, parts):
                return False
            state.hold(held)
        bad = any(not self._sound(key, part) for part in parts)
        with state.lock:
            state.unhold(held)
            return bad and self._same(row, key, parts)

    def _passed(self, row: int, key: bytes, parts: list[_Part]) -> None:
        """What a restart re-adopted needs no other check."""
        state = self._state
        if not state.unverified_parts:
            return
        with state.lock:
            if self._same(row, key, parts):
                for part in parts:
                    state.verified(part.at)

    def _drop(self, row: int, key: bytes) -> None:
        log.error("block %s failed its check at rest in DRAM and is dropped", key.hex())
        with self._state.lock:
            self._state.counters["scrub_failed_blocks"] += 1
        self._state.drop_subtree(row, "checksum")
