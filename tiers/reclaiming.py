"""Emptying a segment so that it can serve another slot size: the least worth is evicted, the rest moves elsewhere.

A block moves as everything moves: its bytes are copied, checked where they arrived, and then its location changes
under the lock. What is leased, being written or known to an orphan session stays, and with it the segment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.core.checksum import chunk_sums, part_seed
from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import HARD_PIN, MAX_NAMESPACES, NO_PIN, READY
from kvstore.tiers.reclaim import SOFT_PIN_WORTH, SegmentFacts, batches, choose, trim
from kvstore.tiers.segments import SlotClass
from kvstore.tiers.state import State
from kvstore.tiers.tier import NO_SLOT, TierKind

_SCAN = 65_536  # rows looked at in one step under the lock
_MOVE_ROWS, _MOVE_BYTES = 16, 8 << 20  # held at a time
_TRIM = 16  # blocks let go at a time under the lock
_ROUNDS = 3  # times that room is made for what is left in a segment
_LEAVES = 65_536  # least valuable leaves that are considered
_PAUSE = 0.5  # seconds until a class is looked at again after there was nothing to gain
_DEMOTION = 2.0  # seconds to wait for blocks on their way to another tier

DRAM = TierKind.DRAM
LetGo = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Survey:
    """What lies in DRAM segments: row, segment and keep value of each slot, and the segments."""

    rows: IntArray
    segments: npt.NDArray[np.int64]
    worth: npt.NDArray[np.float64]
    facts: list[SegmentFacts]


_Piece: TypeAlias = tuple[IntArray, npt.NDArray[np.int64], npt.NDArray[np.bool_]]


@dataclass(slots=True)
class _Trip:
    """One part on its way: where it was, where it goes, and what it must be."""

    row: int
    part: int
    at: int  # part row
    old: int
    new: int
    generation: int
    sound: bool = True


def slot_worth(state: State, rows: IntArray) -> npt.NDArray[np.float64]:
    """Of one slot of each row: a block's worth is shared by its parts, and pins raise it. Takes no lock."""
    index = state.index
    numbers = index.namespace[rows]
    parts = np.ones(MAX_NAMESPACES)
    for number in np.unique(numbers).tolist():
        found = state.namespaces.by_id(number)
        parts[number] = max(1, len(found.cuts)) if found else 1
    worth = state.policy.worth(rows) / parts[numbers]
    return np.where(index.pins[rows] != NO_PIN, worth * SOFT_PIN_WORTH, worth)


class Reclaimer:
    """``evictable(row)`` and ``let_go(row)`` are those of eviction, called under the lock. Methods take the lock."""

    def __init__(self, state: State, evictable: Callable[[int], bool], let_go: LetGo) -> None:
        self._state = state
        self._evictable = evictable
        self._let_go = let_go
        self._one = threading.Lock()  # one segment at a time
        self._not_before: dict[SlotClass, float] = {}
        self._promised: list[int] = []  # closed segments that may not have been taken

    def reclaim(self, wanted: SlotClass, count: int = 0) -> bool:
        """Empties a segment of another class for ``wanted``, if that is the lesser loss. Slow: not under the lock.

        ``count``: slots that would do, if another thread made room meanwhile; 0: a segment more is wanted anyway.
        """
        if time.monotonic() < self._not_before.get(wanted, 0.0):
            return False
        with self._one:
            with self._state.lock:
                self._reopen()
                if 0 < count <= self._state.dram.room(wanted):
                    return True
                others = [kind for kind, _, _ in self._state.dram.classes().values() if kind != wanted]
            done = bool(others) and self._reclaim(wanted)
            if not done:
                self._not_before[wanted] = time.monotonic() + _PAUSE
            return done

    def _reopen(self) -> None:
        for segment in self._promised:
            self._state.dram.reopen_segment(segment)
        self._promised.clear()

    def _reclaim(self, wanted: SlotClass) -> bool:
        survey = self.survey()
        with self._state.lock:
            target = choose(survey.facts, wanted, self._spare())
            if target is None:
                return False
            self._state.dram.close_segment(target.segment, wanted)
            self._promised.append(target.segment)
        for _ in range(_ROUNDS):
            self._make_place(survey, target)
            self._empty(survey, target.segment)
            if not self._left(target.segment):
                break
        with self._state.lock:
            if self._state.dram.used_slots(target.segment).size:
                self._reopen()
                return False
            self._state.counters["reclaimed_segments"] += 1
        return True

    def _spare(self) -> dict[SlotClass, int]:
        spare: dict[SlotClass, int] = {}
        for kind, slots, used in self._state.dram.classes().values():
            spare[kind] = spare.get(kind, 0) + slots - used
        return spare

    def _left(self, segment: int) -> int:
        with self._state.lock:
            return len(self._state.dram.used_slots(segment))

    # --- looking -------------------------------------------------------------------------------------------

    def survey(self) -> Survey:
        """Everything in DRAM, looked at in pieces: what changes meanwhile is seen when it is touched."""
        state = self._state
        pieces = [self._piece(start) for start in range(0, state.index.rows_used, _SCAN)]
        empty = np.empty(0, np.int64)
        rows, segments, free = (
            (np.concatenate(column) for column in zip(*pieces, strict=True))
            if pieces
            else (empty, empty, np.empty(0, np.bool_))
        )
        worth = slot_worth(self._state, rows)
        with state.lock:
            classes = state.dram.classes()
        count = max(classes, default=0) + 1
        total = np.bincount(segments, weights=worth, minlength=count)
        movable = np.bincount(segments, weights=free, minlength=count)
        facts = [
            SegmentFacts(at, kind, slots, used, float(total[at]), int(movable[at]) == used)
            for at, (kind, slots, used) in classes.items()
        ]
        return Survey(rows, segments, worth, facts)

    def _piece(self, start: int) -> _Piece:
        """Row and segment of each slot of some rows, and whether it may be moved."""
        state, index = self._state, self._state.index
        slot, following = index.parts.slot[DRAM], index.parts.next
        found: list[tuple[IntArray, npt.NDArray[np.int64]]] = []
        with state.lock:
            part = slice(start, min(start + _SCAN, index.rows_used))
            rows = start + np.flatnonzero(index.state[part] == READY)
            at, here = index.first_part[rows].astype(np.int64), rows
            while len(here := here[at >= 0]):
                at = at[at >= 0]
                slots = slot[at]
                there = slots != NO_SLOT
                found.append((here[there], state.dram.segment_of(slots[there])))
                at = following[at].astype(np.int64)
            each = np.concatenate([one for one, _ in found]) if found else np.empty(0, np.int64)
            free = index.leases[each] == 0
        segments = np.concatenate([one for _, one in found]) if found else np.empty(0, np.int64)
        return each, segments, free

    # --- making place --------------------------------------------------------------------------------------

    def _make_place(self, survey: Survey, target: SegmentFacts) -> None:
        """Lets the least of the target's class go until what is left in the target fits elsewhere."""
        same = np.zeros(max(one.segment for one in survey.facts) + 1, np.bool_)
        same[[one.segment for one in survey.facts if one.kind == target.kind]] = True
        mine = same[survey.segments]
        by_row = np.full(self._state.index.rows_used, np.nan)
        by_row[survey.rows[mine]] = survey.worth[mine]
        heap = self._leaves(survey.rows[mine], by_row)

        def worth(row: int) -> float | None:
            value = by_row[row] if row < len(by_row) else np.nan
            return float(value) if value == value and self._leaf(row) else None

        while (missing := self._missing(target)) > 0:
            with self._state.lock:
                freed = trim(heap, worth, self._parent, self._taker(same), min(missing, _TRIM))
            if not freed:
                return

    def _leaves(self, rows: IntArray, by_row: npt.NDArray[np.float64]) -> list[tuple[float, int]]:
        """The least valuable leaves among some rows, as a heap."""
        leaves = np.unique(rows[self._state.policy.tiers[0].children[rows] == 0])
        values = by_row[leaves]
        order = np.argsort(values, kind="stable")[:_LEAVES]
        return list(zip(values[order].tolist(), leaves[order].tolist(), strict=True))  # sorted is a heap

    def _missing(self, target: SegmentFacts) -> int:
        """Slots wanting elsewhere for what is in the target. Waits for those that are on their way to another tier."""
        state, end = self._state, time.monotonic() + _DEMOTION
        with state.lock:
            while True:
                missing = len(state.dram.used_slots(target.segment)) - state.dram.room_of_open(target.kind)
                leaving = state.placement.leaving[target.kind] if state.placement else 0
                if missing <= 0 or missing > leaving or not state.placement or time.monotonic() > end:
                    return missing - leaving if missing > leaving else min(missing, 0)
                with state.placement.waiting():
                    state.placement.room.wait(0.05)

    def _parent(self, row: int) -> int:
        return self._state.index.parent_at[row]

    def _leaf(self, row: int) -> bool:
        return not self._state.policy.tiers[0].children_at[row]

    def _taker(self, same: npt.NDArray[np.bool_]) -> Callable[[int], int]:
        """Lets a leaf go; answers how many of its slots are in segments of ``same``."""
        state, index = self._state, self._state.index

        def take(row: int) -> int:
            if index.pins_at[row] == HARD_PIN or not self._leaf(row) or not self._evictable(row):
                return 0
            at = index.parts.slot[DRAM][index.parts.of(row)]
            there = state.dram.segment_of(at[at != NO_SLOT])
            self._let_go(row)
            return int(same[there[there < len(same)]].sum())

        return take

    # --- moving --------------------------------------------------------------------------------------------

    def _empty(self, survey: Survey, segment: int) -> None:
        """Moves what is in a segment to other ones of its class, the most valuable first."""
        mine = np.flatnonzero(survey.segments == segment)
        order = mine[np.argsort(-survey.worth[mine], kind="stable")]
        rows = list(dict.fromkeys(survey.rows[order].tolist()))
        with self._state.lock:
            sized = [(row, self._size(row)) for row in rows]
        for batch in batches(sized, _MOVE_ROWS, _MOVE_BYTES):
            trips = self._depart(batch, segment)
            for trip in trips:
                trip.sound = self._copy(trip)
            for row in self._arrive(trips):
                self._state.drop_subtree(row, "checksum")

    def _size(self, row: int) -> int:
        found = self._state.namespaces.by_id(self._state.index.namespace_at[row])
        return sum(cut.length for cut in found.cuts) if found else 0

    def _depart(self, rows: Sequence[int], segment: int) -> list[_Trip]:
        """Holds those rows that may move, and takes slots for their parts that lie in the segment."""
        state, index = self._state, self._state.index
        trips: list[_Trip] = []
        with state.lock:
            for row in rows:
                if index.state_at[row] != READY or index.leases_at[row]:
                    continue
                mine = self._trips(row, segment)
                if mine:
                    index.leases_at[row] += 1
                    trips.extend(mine)
        return trips

    def _trips(self, row: int, segment: int) -> list[_Trip]:
        """A trip for each part of a row in the segment; none when there is no room for all."""
        state, index = self._state, self._state.index
        trips: list[_Trip] = []
        cuts = state.namespace_of(row).cuts
        for at in index.parts.of(row):
            old = index.parts.slot_at[DRAM][at]
            if old == NO_SLOT or state.dram.segment_of(np.array([old], np.uint32))[0] != segment:
                continue
            part = int(index.parts.part[at])
            given = state.dram.allocate_open(cuts[part].length, cuts[part].count)
            if not len(given.slots):
                state.dram.free(np.array([trip.new for trip in trips], np.uint32))
                return []
            trips.append(_Trip(row, part, at, old, int(given.slots[0]), int(given.generations[0])))
        return trips

    def _copy(self, trip: _Trip) -> bool:
        """Copies the bytes of a held part; whether they pass their checks where they arrived."""
        state = self._state
        with state.lock:
            cut = state.namespace_of(trip.row).cuts[trip.part]
            key = state.index.key(trip.row)
            stored = state.dram.checksums(np.array([trip.old], np.uint32), range(cut.count))[0]
        source, target = state.dram.view(trip.old, cut.length), state.dram.place(trip.new, cut.length)
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
        return bool((chunk_sums(target, part_seed(key, trip.part), cut) == stored).all())

    def _arrive(self, trips: Sequence[_Trip]) -> list[int]:
        """Changes the locations; answers rows whose bytes were bad. A row that somebody leased meanwhile stays."""
        state, index, bad = self._state, self._state.index, []
        with state.lock:
            for row in dict.fromkeys(trip.row for trip in trips):
                mine = [trip for trip in trips if trip.row == row]
                sound = all(trip.sound for trip in mine)
                if sound and index.state_at[row] == READY and index.leases_at[row] == 1:
                    self._change(mine)
                else:
                    state.dram.free(np.array([trip.new for trip in mine], np.uint32))
                    if not sound and index.state_at[row] == READY:
                        bad.append(row)
                state.unhold(np.array([row]))
        return bad

    def _change(self, trips: Sequence[_Trip]) -> None:
        state, parts = self._state, self._state.index.parts
        for trip in trips:
            state.dram.relocated(trip.old, trip.new, trip.generation)
            parts.slot_at[DRAM][trip.at], parts.generation_at[DRAM][trip.at] = trip.new, trip.generation
            state.verified(trip.at)
        state.dram.free(np.array([trip.old for trip in trips], np.uint32))
        state.counters["relocated_parts"] += len(trips)
