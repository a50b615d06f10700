"""The two-tier part of a store, put together: mover, who decides, who copies, and what follows when a disk answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

import numpy as np

from kvstore.tiers.admission import Admission, write_budget
from kvstore.tiers.background import Background
from kvstore.tiers.columns import IntArray
from kvstore.tiers.demoting import Demoter
from kvstore.tiers.durability import Durability
from kvstore.tiers.index import READY
from kvstore.tiers.loading import Loader, MakeRoom
from kvstore.tiers.mover import Move, MoveBounds, Mover, Priority, Report
from kvstore.tiers.moves import Load, block_move
from kvstore.tiers.nvme.ticket import Outcome, Ticket
from kvstore.tiers.nvme_reclaiming import NvmeReclaimer
from kvstore.tiers.placement import DRAM, NVME, Placement
from kvstore.tiers.promoting import Promoter
from kvstore.tiers.state import State
from kvstore.tiers.storing import Storer

_SCAN = 65_536
_BATCH = 64
_PRESSURE_SECONDS = 0.05
_T = TypeVar("_T")


class Movement:
    """``make_room(class, slots)`` frees DRAM slots, called without the lock."""

    def __init__(self, state: State, placement: Placement, make_room: MakeRoom) -> None:
        config = state.config
        budget = write_budget(config.nvme_write_bytes, config.nvme_drive_writes, config.nvme_capacity_bytes)
        self._state = state
        self._placement = placement
        self.demoter = Demoter(state, placement, Admission(config.nvme_admission, budget, time.monotonic()))
        self.reclaimer = NvmeReclaimer(state, placement)
        self._storer = Storer(state, placement, self.demoter, self._note, self.reclaimer.reclaim)
        self._loader = Loader(state, placement, make_room)
        self._answers: SimpleQueue[tuple[Ticket, list[Load]]] = SimpleQueue()
        self.settle_soon: Callable[[], None] = lambda: None  # wakes the thread that calls ``settle``
        self.mover = Mover(self._execute, MoveBounds(workers=config.nvme_movers))
        self.demoter.mover = self.mover
        self._arrived: SimpleQueue[int] = SimpleQueue()  # victims whose writes, begun for others, have ended
        self.demoter.joined = self._note_arrival
        self.promoter = Promoter(state, placement, self.mover)
        self.durability = Durability(state, placement, self.mover)
        placement.nvme.on_bad_slot(self._bad_slot)
        self._bad: SimpleQueue[tuple[int, int]] = SimpleQueue()

    def start(self, failed: Callable[[str], None]) -> list[Background]:
        """Threads that run until they are stopped."""
        settle = Background("settle", self.settle, failed)
        self.settle_soon = settle.wake.set
        pressure = Background("evict-nvme", lambda: 0.0 if self.keep_nvme_watermarks() else _PRESSURE_SECONDS, failed)
        return [settle, pressure]

    def _execute(self, moves: Sequence[Move], report: Report) -> None:
        (self._storer if moves[0].target == NVME else self._loader).execute(moves, report)

    # --- what the disk answers -------------------------------------------------------------------------------

    def _note(self, ticket: Ticket, loads: list[Load]) -> None:
        self._answers.put((ticket, loads))
        self.settle_soon()

    def _note_arrival(self, row: int) -> None:
        self._arrived.put(row)
        self.settle_soon()

    def _bad_slot(self, slot: int, generation: int, reason: str) -> None:
        self._bad.put((slot, generation))
        self.settle_soon()

    def settle(self) -> None:
        """Takes note of writes that are durable or failed, and of slots that the scrubber found damaged."""
        for row in _drain(self._arrived):
            with self._state.lock:
                self.demoter.arrived(row)
        for ticket, loads in _drain(self._answers):
            self._settle(ticket, loads)
        for slot, generation in _drain(self._bad):
            self._drop_bad(slot, generation)

    def _settle(self, ticket: Ticket, loads: list[Load]) -> None:
        lost, at, outcomes = [], 0, ticket.outcomes.tolist()
        with self._state.lock:
            for load in loads:
                mine = outcomes[at : at + len(load.places)]
                at += len(load.places)
                self._placement.settled(load.row, ticket)
                if Outcome.FAILED in mine and self._has_place(load):
                    self._state.counters["written_blocks_lost"] += 1
                    if not self._placement.free_nvme(load.row):
                        lost.append(load.row)
                self.demoter.settled(load.row)
        for row in lost:
            self._state.drop_subtree(row, "io")

    def _has_place(self, load: Load) -> bool:
        """The block still lies where this write put it. (A slot's generation is never given out twice.)"""
        if not self._placement.same(load.row, load.namespace.id, load.key):
            return False
        return any(self._lies_at(load.row, part, place) for part, place in load.places.items())

    def _lies_at(self, row: int, part: int, place: tuple[int, int]) -> bool:
        parts = self._state.index.parts
        at = self._state.index.part_row(row, part)
        return at >= 0 and (parts.slot_at[NVME][at], parts.generation_at[NVME][at]) == place

    def _drop_bad(self, slot: int, generation: int) -> None:
        """A damaged slot: its block loses its copies on NVMe."""
        row = self._row_at(slot, generation)
        if row is None:
            return
        with self._state.lock:
            self._state.counters["scrubbed_bad_blocks"] += 1
            left = self._state.index.state_at[row] != READY or self._placement.free_nvme(row)
        if not left:
            self._state.drop_subtree(row, "checksum")

    def _row_at(self, slot: int, generation: int) -> int | None:
        """The row with a part in a slot; a scan, for the rare slot that is damaged."""
        index = self._state.index
        slots, generations = index.parts.slot[NVME], index.parts.generation[NVME]
        for start in range(0, index.rows_used, _SCAN):
            with self._state.lock:
                rows = start + np.flatnonzero(self._placement.on_nvme[start : min(start + _SCAN, index.rows_used)])
                for row in rows.tolist() if len(rows) else ():
                    for at in index.parts.of(row):
                        if slots[at] == slot and generations[at] == generation:
                            return int(row)
        return None

    # --- ahead of demand -------------------------------------------------------------------------------------

    def keep_nvme_watermarks(self) -> bool:
        """Evicts from NVMe when it is full. False: nothing to do."""
        self.reclaimer.settle()
        if not self._placement.nvme.accepting:
            with self._state.lock:
                self.demoter.give_up()
        config = self._state.config
        short = self._placement.nvme.shortage(config.high_watermark, config.low_watermark)
        if not short:
            return False
        with self._state.lock:
            return self.demoter.make_nvme_room(min(short, _BATCH)) > 0

    # --- the end ---------------------------------------------------------------------------------------------

    def flush(self, seconds: float) -> int:
        """Writes what is in DRAM only to NVMe, the last used first, until time is up. How many blocks."""
        if seconds <= 0 or not self._placement.nvme.accepting or self.demoter.rule == "off":
            return 0
        deadline, written = time.monotonic() + seconds, 0
        rows = self._hottest()
        for start in range(0, len(rows), _BATCH):
            if time.monotonic() > deadline or not self._placement.nvme.accepting:
                break
            written += self._flush(rows[start : start + _BATCH], deadline)
        return written

    def _hottest(self) -> IntArray:
        """Rows that are in DRAM only, the last used first, and each after its parent."""
        state, index = self._state, self._state.index
        with state.lock:
            used = slice(0, index.rows_used)
            here = index.state[used] == READY
            rows = np.flatnonzero(here & (self._placement.dram[used] & ~self._placement.on_nvme[used] != 0))
            order = np.lexsort((index.block[rows], -state.policy.last_use(rows)))
        return rows[order]

    def _flush(self, rows: IntArray, deadline: float) -> int:
        state = self._state
        with state.lock:
            moves = [
                block_move(
                    row, state.namespace_of(row), state.index.key(row), DRAM, NVME, Priority.READER, keep=True
                )
                for row in rows.tolist()
                if state.index.state_at[row] == READY
            ]  # fmt: skip
        tickets = self.mover.request(moves, None, deadline)
        return sum(ticket.wait(max(0.0, deadline - time.monotonic())) == "done" for ticket in tickets)

    def close(self) -> None:
        """Ends the moves; what has not started stays where it is."""
        self.mover.close()


def _drain(queue: SimpleQueue[_T]) -> Iterator[_T]:
    """What has come, until there is nothing."""
    with contextlib.suppress(Empty):
        while True:
            yield queue.get_nowait()
