"""Emptying an NVMe segment so that it can serve another slot size: the least valuable one goes as a whole.

Moving blocks on the disk would cost writes, which is what a flash tier has least of: what lies in the segment is
dropped from NVMe. The decision is that of DRAM (reclaim.py). What is being read keeps its segment.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import HARD_PIN, READY
from kvstore.tiers.placement import NVME, Placement
from kvstore.tiers.reclaim import SegmentFacts, choose
from kvstore.tiers.reclaiming import slot_worth
from kvstore.tiers.segments import SlotClass
from kvstore.tiers.state import State
from kvstore.tiers.tier import NO_SLOT

_SCAN = 65_536  # rows looked at in one step under the lock
_DROP = 16  # blocks dropped at a time under the lock
_PAUSE = 0.5  # seconds until a class is looked at again after there was nothing to gain
_TAKEN = 10.0  # seconds after which a closed segment that was not taken serves its own class again

I64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Promise:
    """A segment that was closed for a class."""

    kind: SlotClass
    until: float


class NvmeReclaimer:
    """Methods take the store's lock themselves, for short times."""

    def __init__(self, state: State, placement: Placement) -> None:
        self._state = state
        self._placement = placement
        self._slots = placement.nvme.slots
        self._one = threading.Lock()  # one segment at a time
        self._not_before: dict[SlotClass, float] = {}
        self._promised: dict[int, _Promise] = {}

    def reclaim(self, wanted: SlotClass) -> bool:
        """Whether slots of a class are there or on their way: a segment of another class is emptied for them, if that
        is the lesser loss. They come once the removals are durable, one commit later. Slow."""
        if time.monotonic() < self._not_before.get(wanted, 0.0):
            return False
        with self._one:
            self._settle()
            if self._slots.room(wanted) or any(one.kind == wanted for one in self._promised.values()):
                return True
            done = self._reclaim(wanted)
            if not done:
                self._not_before[wanted] = time.monotonic() + _PAUSE
            return done

    def settle(self) -> None:
        """Segments that were promised and not taken serve their own class again."""
        if self._promised and self._one.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._one.release()

    def _settle(self) -> None:
        for segment, promise in list(self._promised.items()):
            if not self._slots.closed(segment):
                del self._promised[segment]
            elif time.monotonic() > promise.until:
                self._slots.reopen(segment)
                del self._promised[segment]

    def _reclaim(self, wanted: SlotClass) -> bool:
        segments = self._slots.dedicated()
        if all(kind == wanted for kind, _, _ in segments.values()):
            return False
        rows, places, facts = self._survey(segments)
        target = choose(facts, wanted, {})
        if target is None:
            return False
        self._slots.close(target.segment, wanted)
        self._empty(rows[places == target.segment])
        if self._slots.held(target.segment):  # somebody came in between
            self._slots.reopen(target.segment)
            return False
        self._promised[target.segment] = _Promise(wanted, time.monotonic() + _TAKEN)
        self._placement.nvme.barrier()  # somebody waits for the slots
        with self._state.lock:
            self._state.counters["nvme_reclaimed_segments"] += 1
        return True

    # --- looking -------------------------------------------------------------------------------------------

    def _survey(self, segments: dict[int, tuple[SlotClass, int, int]]) -> tuple[IntArray, I64Array, list[SegmentFacts]]:
        """Row and segment of each slot with a block, and the segments. What changes meanwhile is seen when touched."""
        pieces = [self._piece(start) for start in range(0, self._state.index.rows_used, _SCAN)]
        rows = np.concatenate([np.empty(0, np.int64), *(piece[0] for piece in pieces)])
        places = np.concatenate([np.empty(0, np.int64), *(piece[1] for piece in pieces)])
        free = np.concatenate([np.empty(0, np.bool_), *(piece[2] for piece in pieces)])
        count = max(segments) + 1
        worth = np.bincount(places, weights=slot_worth(self._state, rows), minlength=count)
        movable = np.bincount(places, weights=free, minlength=count)
        facts = [
            SegmentFacts(at, kind, slots, held, float(worth[at]), int(movable[at]) >= held)
            for at, (kind, slots, held) in segments.items()
        ]
        return rows, places, facts

    def _piece(self, start: int) -> tuple[IntArray, I64Array, npt.NDArray[np.bool_]]:
        """Row and segment of each slot of some rows, and whether it may go."""
        index, parts = self._state.index, self._state.index.parts
        found: list[tuple[IntArray, I64Array]] = []
        with self._state.lock:
            part = slice(start, min(start + _SCAN, index.rows_used))
            here = start + np.flatnonzero((index.state[part] == READY) & (self._placement.on_nvme[part] != 0))
            at = index.first_part[here].astype(np.int64)
            while len(here := here[at >= 0]):
                at = at[at >= 0]
                slots = parts.slot[NVME][at]
                there = slots != NO_SLOT
                found.append((here[there], slots[there].astype(np.int64) // self._slots.segment_granules))
                at = parts.next[at].astype(np.int64)
            rows = np.concatenate([np.empty(0, np.int64), *(one for one, _ in found)])
            free = (index.leases[rows] == 0) & (index.pins[rows] != HARD_PIN)
        return rows, np.concatenate([np.empty(0, np.int64), *(one for _, one in found)]), free

    # --- dropping ------------------------------------------------------------------------------------------

    def _empty(self, rows: IntArray) -> None:
        """Takes blocks off NVMe, the deepest first, so that few take others along that hang on them."""
        order = np.unique(rows)
        order = order[np.argsort(-self._state.index.block[order].astype(np.int64), kind="stable")]
        for start in range(0, len(order), _DROP):
            inner: list[int] = []
            with self._state.lock:
                for row in order[start : start + _DROP].tolist():
                    if self._may_go(row) and not self._drop(row):
                        inner.append(row)
            for row in inner:
                self._state.drop_subtree(row, "evicted")

    def _may_go(self, row: int) -> bool:
        index = self._state.index
        here = index.state_at[row] == READY and bool(self._placement.nvme_at[row])
        return here and not index.leases_at[row] and index.pins_at[row] != HARD_PIN

    def _drop(self, row: int) -> bool:
        """A block loses its copy on NVMe, and itself when there is no other; False: others hang on it."""
        index, placement = self._state.index, self._placement
        if not index.ready_at[row] & ~placement.dram_at[row]:
            placement.free_nvme(row)
        elif index.children_at[row]:
            return False
        else:
            self._state.drop(row, "evicted")
        self._state.counters["nvme_evicted_blocks"] += 1
        return True
