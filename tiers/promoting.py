"""Asking for blocks that are on NVMe only: by readers that wait, and ahead of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import Closed
from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import READY
from kvstore.tiers.mover import DONE, Mover, MoveTicket, Priority
from kvstore.tiers.moves import block_move
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.placement import DRAM, NVME, Placement
from kvstore.tiers.state import PIECE, State
from kvstore.tiers.values import Prefetched

_AHEAD_BYTES = 64 << 20  # loaded ahead of a reader, who is served as blocks arrive
_PIECE_BYTES = 16 << 20  # that a reader without anything to copy waits for


class Promoter:
    """Each method takes the lock itself, for short times."""

    def __init__(self, state: State, placement: Placement, mover: Mover) -> None:
        self._state = state
        self._placement = placement
        self._mover = mover

    # --- readers ---------------------------------------------------------------------------------------------

    def ahead(
        self, owner: bytes, namespace: Namespace, keys: KeyArray, first: int, wanted: int, deadline: float
    ) -> list[MoveTicket]:
        """Starts loading blocks ``first`` and on, as many as are read ahead. ``wanted``: mask of the parts needed."""
        size = max(1, sum(cut.length for cut in namespace.cuts))
        room = min(_AHEAD_BYTES, self._state.dram.capacity // 4)
        count = max(1, min(PIECE, room // size))
        rows = self._missing(namespace, keys[first : first + count], wanted)
        return self._request(namespace, rows, Priority.READER, owner, deadline)

    def wait(self, namespace: Namespace, tickets: Sequence[MoveTicket], deadline: float) -> int:
        """How many of the first blocks have come; waits for a piece of them, or for as many as come in time."""
        size = max(1, sum(cut.length for cut in namespace.cuts))
        come = 0
        for ticket in tickets[: max(1, _PIECE_BYTES // size)]:
            if ticket.wait(max(0.0, deadline - time.monotonic())) != DONE:
                break
            come += 1
        return come

    # --- ahead of readers --------------------------------------------------------------------------------------

    def prefetch(
        self, owner: bytes, namespace: Namespace, keys: KeyArray, wanted: int, deadline: float | None
    ) -> Prefetched:
        """Starts loading what is on NVMe only of the prefix that is here."""
        started = present = 0
        for start in range(0, len(keys), PIECE):
            piece = keys[start : start + PIECE]
            rows, here = self._prefix(namespace, piece, wanted)
            moves = self._request(namespace, rows[~here], Priority.PREFETCH, owner, deadline)
            started += len(moves)
            present += int(here.sum())
            if len(rows) < len(piece):
                break
        with self._state.lock:
            self._state.counters["prefetch_blocks"] += started
        return Prefetched(started, present, len(keys) - started - present)

    def cancel(self, owner: bytes) -> None:
        """The session has ended: nobody waits for what it asked for."""
        self._mover.cancel_owner(owner)

    # --- inside ------------------------------------------------------------------------------------------------

    def _prefix(self, namespace: Namespace, keys: KeyArray, wanted: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Rows of the leading blocks that are here, and which of them are in DRAM."""
        state, index = self._state, self._state.index
        with state.lock:
            rows = index.find(namespace.id, keys)
            good = (rows >= 0) & (index.state[rows] == READY)
            rows = rows[: len(rows) if good.all() else int(good.argmin())]
            lacking = index.ready[rows] & ~self._placement.dram[rows] & np.uint64(wanted)
        return rows, lacking == 0

    def _missing(self, namespace: Namespace, keys: KeyArray, wanted: int) -> IntArray:
        rows, here = self._prefix(namespace, keys, wanted)
        return rows[~here]

    def _request(
        self, namespace: Namespace, rows: IntArray, priority: Priority, owner: bytes, deadline: float | None
    ) -> list[MoveTicket]:
        with self._state.lock:
            key = self._state.index.key
            moves = [block_move(row, namespace, key(row), NVME, DRAM, priority) for row in rows.tolist()]
        if not moves:
            return []
        try:
            return self._mover.request(moves, owner, deadline)
        except Closed:
            return []
