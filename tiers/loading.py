"""NVMe to DRAM: blocks are read in a pipeline, checked as they arrive, and can be read in DRAM at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kvstore.tiers.index import READY
from kvstore.tiers.mover import DONE, FAILED, Move, Priority, Report
from kvstore.tiers.moves import GONE, NO_ROOM, Load, Trip, entries_of
from kvstore.tiers.nvme.blockio import IO, STALE
from kvstore.tiers.nvme.transfer import Fetched, Want
from kvstore.tiers.placement import LOADED, NVME, PREFETCHED, Placement
from kvstore.tiers.segments import SlotClass
from kvstore.tiers.state import State
from kvstore.tiers.tier import GRANULE

MakeRoom = Callable[["SlotClass | None", int], int]
_ATTEMPTS = 8
_TRANSIENT = frozenset({"busy", "failed"})  # of a read that says nothing about the bytes


class Loader:
    """``execute`` runs on threads of the mover. ``make_room`` is the evictor's, called without the lock."""

    def __init__(self, state: State, placement: Placement, make_room: MakeRoom) -> None:
        self._state = state
        self._placement = placement
        self._make_room = make_room

    def execute(self, moves: Sequence[Move], report: Report) -> None:
        """Carries moves out, in order, and reports each as it arrives."""
        loads: list[Load] = []
        try:
            for move in moves:
                self._begin(move, loads, report)
            loads = self._with_slots(loads, report)
            self._fetch(loads, report)
        except BaseException:
            with self._state.lock:
                for load in loads:
                    self._close(load, free=True)
            raise

    def _begin(self, move: Move, loads: list[Load], report: Report) -> None:
        """Takes hold of a block that NVMe still has and DRAM has not."""
        trip, row, placement = move.context, move.unit, self._placement
        assert isinstance(trip, Trip)
        with self._state.lock:
            if not placement.same(row, trip.namespace, trip.key):
                outcome = GONE
            elif not placement.nvme_at[row] & ~placement.dram_at[row]:
                outcome = DONE
            else:
                outcome = ""
                placement.begin(row)
                load = Load(move, row, trip.key, self._state.namespace_of(row))
                self._note_parts(load)
                loads.append(load)
        if outcome:
            report(move, outcome)

    def _note_parts(self, load: Load) -> None:
        placement, parts, row = self._placement, self._state.index.parts, load.row
        missing = placement.nvme_at[row] & ~placement.dram_at[row]
        for part in range(len(load.namespace.cuts)):
            if missing >> part & 1:
                at = self._state.index.part_row(row, part)
                load.sources[part] = (parts.slot_at[NVME][at], parts.generation_at[NVME][at])

    # --- slots -----------------------------------------------------------------------------------------------

    def _with_slots(self, loads: list[Load], report: Report) -> list[Load]:
        """Slots in DRAM for as many of the first loads as there is room for; the others have failed."""
        for attempt in range(_ATTEMPTS):
            with self._state.lock:
                missing = [kind for load in loads if not load.places for kind in self._allocate(load)]
            if not missing or attempt + 1 == _ATTEMPTS:
                break
            kinds = {kind: missing.count(kind) for kind in missing}
            if not sum(self._make_room(kind, count) for kind, count in kinds.items()):
                break
        served = [load for load in loads if load.places]
        for load in loads:
            if not load.places:
                with self._state.lock:
                    self._close(load)
                report(load.move, NO_ROOM)
        return served

    def _allocate(self, load: Load) -> list[SlotClass]:
        """All slots of a load, or none and the classes that lack one."""
        dram, places, missing = self._state.dram, {}, []
        for part in load.sources:
            cut = load.namespace.cuts[part]
            slots = dram.allocate(cut.length, cut.count, 1)
            if len(slots.slots):
                places[part] = (int(slots.slots[0]), int(slots.generations[0]))
            else:
                missing.append(dram.slot_class(cut.length, cut.count))
        if missing:
            if places:
                dram.free(np.array([slot for slot, _ in places.values()], np.uint32))
            return missing
        load.places = places
        self._placement.transit.update(slot for slot, _ in places.values())
        return []

    # --- bytes -----------------------------------------------------------------------------------------------

    def _fetch(self, loads: list[Load], report: Report) -> None:
        with self._state.lock:
            wants = [want for load in loads for want in self._wants(load)]
        arriving = self._placement.nvme.fetch(wants)
        for load in loads:
            bad = self._take(load, arriving)
            if bad is None:
                self._finish(load, report)
            else:
                self._fail(load, bad, report)

    def _wants(self, load: Load) -> Iterator[Want]:
        number = self._placement.number(load.namespace)
        for part, (slot, generation) in load.sources.items():
            length = load.namespace.cuts[part].length
            into = self._state.dram.writable(load.places[part][0] * GRANULE, length)
            yield Want(slot, generation, number, part, load.key, into)

    @staticmethod
    def _take(load: Load, arriving: Iterator[Fetched]) -> str | None:
        """Takes the parts of a load as they come; why one of them is of no use."""
        bad = None
        for part in load.sources:
            got = next(arriving)
            if got.reason or got.checksums is None:
                bad = bad or got.reason or FAILED
            else:
                load.sums[part] = got.checksums
        return bad

    def _finish(self, load: Load, report: Report) -> None:
        """From here on the block is read in DRAM."""
        placement, state, row = self._placement, self._state, load.row
        with state.lock:
            there = state.index.state_at[row] == READY and self._still_there(load)
            if there:
                for part in load.places:  # one by one: they may differ in how many chunks they have
                    state.dram.record(entries_of(state.index, [(load, part)], {load.namespace.id: load.namespace.id}))
                placement.transit.difference_update(slot for slot, _ in load.places.values())
                reader = load.move.priority is Priority.READER
                placement.brought(row, load.places, LOADED if reader else PREFETCHED)
                load.places = {}
                state.counters["promoted_blocks_" + ("read" if reader else "prefetch")] += 1
                size = sum(load.namespace.cuts[part].length for part in load.sources)
                state.counters["promoted_bytes"] += size
            self._close(load, free=True)
        report(load.move, DONE if there else GONE)

    def _still_there(self, load: Load) -> bool:
        """NVMe has not lost a part of it meanwhile; there may be another one of that number now."""
        parts, row = self._state.index.parts, load.row
        ats = [(parts.find(row, part), source) for part, source in load.sources.items()]
        return all(at >= 0 and (parts.slot_at[NVME][at], parts.generation_at[NVME][at]) == was for at, was in ats)

    def _fail(self, load: Load, reason: str, report: Report) -> None:
        """A block that cannot be read, or is not what was written, is lost on NVMe."""
        state = self._state
        lost = reason not in _TRANSIENT and self._placement.nvme.readable
        with state.lock:
            state.counters["load_failed_blocks_" + reason] += 1
            there = state.index.state_at[load.row] == READY and lost and self._still_there(load)
            left = not there or self._placement.free_nvme(load.row, bad=reason == IO)
        if not left:
            state.drop_subtree(load.row, "stale" if reason == STALE else "io" if reason == IO else "checksum")
        with state.lock:
            self._close(load, free=True)
        report(load.move, GONE if there else FAILED)

    def _close(self, load: Load, free: bool = False) -> None:
        if load.closed:
            return
        load.closed = True
        if free and load.places:
            slots = [slot for slot, _ in load.places.values()]
            self._placement.transit.difference_update(slots)
            self._state.dram.free(np.array(slots, np.uint32))
        self._placement.end(load.row)
