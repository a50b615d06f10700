"""Making blocks durable: they and all that they hang on are on NVMe, synced, before anybody is told so."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import Closed
from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import READY
from kvstore.tiers.mover import DONE, Mover, Priority
from kvstore.tiers.moves import block_move
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.nvme.health import Cause
from kvstore.tiers.nvme.ticket import Outcome, Ticket
from kvstore.tiers.placement import DRAM, NVME, Placement
from kvstore.tiers.state import PIECE, State

_STEP = 0.05  # seconds: a write may settle while another one of the same block starts


class Durability:
    """Each method takes the lock itself, for short times."""

    def __init__(self, state: State, placement: Placement, mover: Mover) -> None:
        self._state = state
        self._placement = placement
        self._mover = mover

    def copy(self, namespace: Namespace, keys: KeyArray) -> None:
        """Starts writing blocks through; nobody waits."""
        rows = self._rows(namespace, keys)
        with self._state.lock:
            moves = [
                block_move(row, namespace, self._state.index.key(row), DRAM, NVME, Priority.DEMOTION, keep=True)
                for row in rows[rows >= 0].tolist()
                if not self._placement.clean(row)
            ]
        try:
            self._mover.demote(moves)
        except Closed:
            return

    def wait(self, namespace: Namespace, keys: KeyArray, deadline: float) -> npt.NDArray[np.bool_]:
        """Which of the blocks are durable, with all of their ancestors, at the deadline (time.monotonic) or before."""
        while True:
            rows = self._rows(namespace, keys)
            lacking, tickets = self._open(rows)
            if not lacking and not tickets:
                return self._durable(namespace, rows)
            left = deadline - time.monotonic()
            if left <= 0 or not self._placement.nvme.accepting:
                return self._durable(namespace, rows)
            if lacking:
                self._write(namespace, lacking, deadline)
            for ticket in tickets:
                ticket.wait_durable(max(0.0, deadline - time.monotonic()))
            if tickets and not lacking:
                time.sleep(min(_STEP, max(0.0, deadline - time.monotonic())))

    def absent(self, namespace: Namespace, keys: KeyArray) -> npt.NDArray[np.bool_]:
        """Which of the blocks are in no tier."""
        return np.asarray(self._rows(namespace, keys) < 0)

    def _rows(self, namespace: Namespace, keys: KeyArray) -> IntArray:
        found = []
        for start in range(0, len(keys), PIECE):
            with self._state.lock:
                rows = self._state.index.find(namespace.id, keys[start : start + PIECE])
                found.append(np.where(self._state.index.state[rows] == READY, rows, -1))
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _open(self, rows: IntArray) -> tuple[list[int], list[Ticket]]:
        """Blocks, of these and their ancestors, that are not written, first ones first; and writes not settled yet."""
        lacking: set[int] = set()
        tickets: dict[int, Ticket] = {}
        with self._state.lock:
            for row in self._closure(rows):
                if not self._placement.clean(row):
                    lacking.add(row)
                else:
                    tickets.update((id(ticket), ticket) for ticket in self._placement.unsettled.get(row, ()))
            order = sorted(lacking, key=lambda row: self._state.index.block_at[row])
        return order, list(tickets.values())

    def _closure(self, rows: IntArray) -> set[int]:
        parent_at, seen = self._state.index.parent_at, set[int]()
        for row in rows[rows >= 0].tolist():
            while row >= 0 and row not in seen:
                seen.add(row)
                row = parent_at[row]
        return seen

    def _write(self, namespace: Namespace, rows: list[int], deadline: float) -> None:
        state = self._state
        with state.lock:
            moves = [
                block_move(row, namespace, state.index.key(row), DRAM, NVME, Priority.READER, keep=True)
                for row in rows
                if state.index.state_at[row] == READY and state.index.namespace_at[row] == namespace.id
            ]
        try:
            tickets = self._mover.request(moves, None, deadline)
        except Closed:
            tickets = []
        ends = [ticket.wait(max(0.0, deadline - time.monotonic())) for ticket in tickets]
        if DONE not in ends:  # there was no room, perhaps
            time.sleep(min(_STEP, max(0.0, deadline - time.monotonic())))

    def _durable(self, namespace: Namespace, rows: IntArray) -> npt.NDArray[np.bool_]:
        if Cause.GONE.name in self._placement.nvme.health.causes:  # what was durable is not
            return np.zeros(len(rows), np.bool_)
        with self._state.lock:
            known: dict[int, bool] = {-1: True}
            return np.array([row >= 0 and self._safe(row, known) for row in rows.tolist()], np.bool_)

    def _safe(self, row: int, known: dict[int, bool]) -> bool:
        """The block and its ancestors are on the disk for good."""
        path, placement = [], self._placement
        while row not in known:
            path.append(row)
            row = self._state.index.parent_at[row]
        good = known[row]
        for at in reversed(path):
            good = good and placement.clean(at) and bool(placement.nvme_at[at]) and self._settled(at)
            known[at] = good
        return good

    def _settled(self, row: int) -> bool:
        tickets = self._placement.unsettled.get(row, ())
        return all(bool((ticket.outcomes == Outcome.DURABLE).all()) for ticket in tickets)
