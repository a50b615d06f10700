"""DRAM to NVMe: blocks are checked, written, and can be read there before anything else changes."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from kvstore.core.errors import InvalidArgument
from kvstore.tiers.demoting import Demoter
from kvstore.tiers.index import HARD_PIN, READY
from kvstore.tiers.mover import DONE, FAILED, Move, Report
from kvstore.tiers.moves import GONE, NO_ROOM, Load, Trip, entries_of, sound
from kvstore.tiers.nvme.ticket import Outcome, Ticket
from kvstore.tiers.placement import DRAM, Placement
from kvstore.tiers.segments import SlotClass
from kvstore.tiers.state import State

_PATIENCE = 3.0  # seconds that a batch waits for NVMe slots which are on their way
_STEP = 0.02
_SURE = 3  # looks in a row that find that nothing can go from a full NVMe
_AT_ONCE = 64  # NVMe victims at a time under the lock

Settle = Callable[[Ticket, list[Load]], None]
Reclaim = Callable[[SlotClass], bool]


class Storer:
    """``execute`` runs on threads of the mover. ``settled(ticket, loads)`` is called when all writes of a batch are
    durable or failed, on a thread of the tier: it must be quick and take no lock of the store. ``reclaim(class)``,
    called without the lock: slots of a class are there, or a segment of another one was emptied for it."""

    def __init__(self, state: State, placement: Placement, demoter: Demoter, settled: Settle, reclaim: Reclaim) -> None:
        self._state = state
        self._placement = placement
        self._demoter = demoter
        self._settled = settled
        self._reclaim = reclaim

    def execute(self, moves: Sequence[Move], report: Report) -> None:
        """Carries moves out and reports each."""
        loads = self._begin(moves, report)
        try:
            ready = self._checked(loads, report)
            ready = self._with_slots(ready, report)
            if ready:
                self._write(ready, report)
        except BaseException:
            with self._state.lock:
                for load in loads:
                    self._give_up(load)
            raise

    def _begin(self, moves: Sequence[Move], report: Report) -> list[Load]:
        """Takes hold of what is still there, with the checksums in DRAM."""
        loads, gone = [], []
        with self._state.lock:
            for move in moves:
                trip, row = move.context, move.unit
                assert isinstance(trip, Trip)
                if not trip.held and not self._placement.same(row, trip.namespace, trip.key):
                    gone.append(move)
                    continue
                if not trip.held:
                    self._placement.begin(row)
                    self._placement.copying += 1
                load = Load(move, row, trip.key, self._state.namespace_of(row))
                self._note_parts(load)
                loads.append(load)
        for move in gone:
            report(move, GONE)
        return loads

    def _note_parts(self, load: Load) -> None:
        """The parts that NVMe does not have, with their places in DRAM."""
        placement, parts, row = self._placement, self._state.index.parts, load.row
        missing = placement.dram_at[row] & ~placement.nvme_at[row]
        if self._state.index.state_at[row] != READY:
            return
        for part, cut in enumerate(load.namespace.cuts):
            if missing >> part & 1:
                slot = parts.slot_at[DRAM][self._state.index.part_row(row, part)]
                load.places[part] = (slot, 0)
                load.sums[part] = self._state.dram.checksums(np.array([slot], np.uint32), range(cut.count))[0]

    def _checked(self, loads: list[Load], report: Report) -> list[Load]:
        """Drops what does not pass its checks; ends moves that have nothing to write. No lock: the rows are held."""
        good = []
        for load in loads:
            if not load.places:
                self._finish(load, {}, None, report)
            elif all(sound(load, part, self._view(load, part)) for part in load.places):
                good.append(load)
            else:
                self._damaged(load, report)
        return good

    def _view(self, load: Load, part: int) -> memoryview:
        return self._state.dram.view(load.places[part][0], load.namespace.cuts[part].length)

    def _damaged(self, load: Load, report: Report) -> None:
        with self._state.lock:
            there = self._placement.same(load.row, load.namespace.id, load.key)
        if there:
            self._state.drop_subtree(load.row, "checksum")
        self._finish(load, {}, None, report)

    # --- slots -----------------------------------------------------------------------------------------------

    def _with_slots(self, loads: list[Load], report: Report) -> list[Load]:
        """Gives each part a slot on NVMe, whose own victims make room for a while. What gets none has failed."""
        deadline, waiting, ready, stuck = time.monotonic() + _PATIENCE, list(loads), [], 0
        while waiting:
            with self._state.lock:
                served = self._allocate(waiting)
                ready += served
                waiting = [load for load in waiting if load not in served]
            if waiting and not self._placement.nvme.growing:
                stuck = 0 if self._make_room(waiting) else stuck + 1
            if stuck == _SURE:
                self._demoter.nvme_is_full()
            if waiting and (stuck == _SURE or time.monotonic() > deadline or not self._placement.nvme.accepting):
                break
            if waiting:
                time.sleep(_STEP)
        for load in waiting:
            self._fail(load, report, NO_ROOM)
        return ready

    def _make_room(self, loads: list[Load]) -> bool:
        """Empties a segment of another slot size for them, or else evicts. False: nothing can go, now or later."""
        kinds = {kind for load in loads for kind in self._kinds(load)}
        coming = [self._reclaim(kind) for kind in kinds]
        if coming and all(coming):
            return True
        missing = sum(len(load.places) for load in loads) - self._placement.nvme.slots.limbo
        if missing <= 0:  # what was evicted before comes with the next commit
            return True
        with self._state.lock:
            return self._demoter.make_nvme_room(min(_AT_ONCE, missing)) > 0 or not self._demoter.nvme_stuck()

    def _kinds(self, load: Load) -> list[SlotClass]:
        cuts, slots = load.namespace.cuts, self._placement.nvme.slots
        with contextlib.suppress(InvalidArgument):  # such a part never fits a segment there
            return [slots.kind(cuts[part].length, cuts[part].count) for part in load.places]
        return []

    def _allocate(self, loads: list[Load]) -> list[Load]:
        """Those that got slots for all of their parts."""
        groups: dict[tuple[int, int], list[tuple[Load, int]]] = defaultdict(list)
        for load in loads:
            for part in load.places:
                cut = load.namespace.cuts[part]
                groups[cut.length, cut.count].append((load, part))
        found: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        for (length, chunks), wanted in groups.items():
            try:
                slots = self._placement.nvme.allocate(length, chunks, len(wanted))
            except InvalidArgument:  # such a part never fits a segment there
                continue
            places = zip(slots.slots.tolist(), slots.generations.tolist(), strict=True)
            for (load, part), place in zip(wanted, places, strict=False):
                found[id(load)][part] = place
        served = []
        for load in loads:
            got = found[id(load)]
            if len(got) == len(load.places):
                load.sources, load.places = load.places, got
                served.append(load)
            elif got:
                self._placement.nvme.free(np.array([slot for slot, _ in got.values()], np.uint32))
        return served

    # --- writing ---------------------------------------------------------------------------------------------

    def _write(self, loads: list[Load], report: Report) -> None:
        with self._state.lock:
            numbers = {load.namespace.id: self._placement.number(load.namespace) for load in loads}
            parts = [(load, part) for load in loads for part in load.places]
            entries = entries_of(self._state.index, parts, numbers)
        views = [self._state.dram.view(load.sources[part][0], load.namespace.cuts[part].length) for load, part in parts]
        ticket = self._placement.nvme.persist(entries, views)
        ticket.wait_written()
        outcomes, at = ticket.outcomes.tolist(), 0
        for load in loads:
            mine = outcomes[at : at + len(load.places)]
            at += len(load.places)
            if Outcome.FAILED in mine:
                self._fail(load, report, FAILED)
            else:
                self._finish(load, load.places, ticket, report)
        ticket.on_settled(lambda ticket: self._settled(ticket, loads))
        if self._placement.awaited:
            self._placement.nvme.commit_soon()

    def _fail(self, load: Load, report: Report, outcome: str) -> None:
        """The block could not be written: a victim is dropped, unless somebody needs it."""
        placement, state = self._placement, self._state
        with state.lock:
            there = state.index.state_at[load.row] == READY
            if load.sources:
                placement.nvme.free(np.array([slot for slot, _ in load.places.values()], np.uint32))
            state.counters["demotion_failed_blocks"] += 1
            if there and load.trip.held:
                alone = state.index.leases_at[load.row] == 1 and not state.index.children_at[load.row]
                if alone and state.index.pins_at[load.row] != HARD_PIN:  # pinned on its way, perhaps
                    state.drop(load.row, "evicted")
                else:
                    placement.enter(np.array([load.row]), DRAM)
            self._close(load)
        report(load.move, outcome)

    def _finish(self, load: Load, places: dict[int, tuple[int, int]], ticket: Ticket | None, report: Report) -> None:
        """The new place counts; a victim goes on to leave DRAM."""
        placement, index = self._placement, self._state.index
        with self._state.lock:
            there = index.state_at[load.row] == READY
            if there and ticket is not None:
                placement.written(load.row, places, ticket)
                self._state.counters["written_blocks"] += 1
                self._state.counters["written_bytes"] += sum(load.namespace.cuts[part].length for part in places)
            elif places:
                placement.nvme.free(np.array([slot for slot, _ in places.values()], np.uint32))
            if there and load.trip.held:
                load.closed = True
                self._demoter.arrived(load.row)
            self._close(load)
        report(load.move, DONE if there else GONE)

    def _give_up(self, load: Load) -> None:
        """Something is wrong with us: the block stays where it was."""
        if not load.closed and load.trip.held and self._state.index.state_at[load.row] == READY:
            self._placement.enter(np.array([load.row]), DRAM)
        self._close(load)

    def _close(self, load: Load) -> None:
        if load.closed:
            return
        load.closed = True
        if load.trip.held:
            self._demoter.ended(load.row)
        else:
            self._placement.copying -= 1
            self._placement.end(load.row)
            self._placement.room.notify_all()
