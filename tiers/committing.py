"""Committing and giving up reservations."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import InvalidArgument, SessionLost
from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import EVICTING, FREE, READY
from kvstore.tiers.leases import Reservation
from kvstore.tiers.sessions import Session
from kvstore.tiers.state import State
from kvstore.tiers.tier import Entries, TierKind, U64Array
from kvstore.tiers.values import PutOutcome

_STORED, _PARENT_MISSING = np.uint8(PutOutcome.STORED), np.uint8(PutOutcome.PARENT_MISSING)
Mask = npt.NDArray[np.bool_]
_PIECE = 64  # blocks committed or given up at a time under the lock


class Committer:
    """Makes filled slots visible, or gives them back. Each method takes the lock itself."""

    def __init__(self, state: State) -> None:
        self._state = state

    def commit(self, session: Session, number: int, checksums: U64Array) -> bytes:
        """One PutOutcome byte for each reserved key. ``checksums``: of all chunks, block-major by part.

        Raises InvalidArgument, SessionLost.
        """
        reservation = self._finish(session, number, checksums)
        sums = np.asarray(checksums, np.uint64).reshape(len(reservation.rows), sum(reservation.chunks))
        stamp = int(time.time())
        outcomes = []
        for start in range(0, len(sums), _PIECE):
            with self._state.lock:
                outcomes.append(self._commit(reservation, slice(start, start + _PIECE), sums, stamp))
        return b"".join(outcomes)

    def abort(self, session: Session, number: int) -> None:
        """Gives the slots back; the caller writes to them no more. Raises InvalidArgument."""
        self.give_up(self._finish(session, number, None))

    def give_up(self, reservation: Reservation) -> None:
        """Frees the slots of a reservation that has been taken out of its session."""
        for stop in range(len(reservation.rows), 0, -_PIECE):
            part = slice(max(0, stop - _PIECE), stop)
            with self._state.lock:
                left = self._give_up(reservation, part)
            for row, key in left:
                self._drop_branch(reservation.namespace.id, row, key)

    def _finish(self, session: Session, number: int, checksums: U64Array | None) -> Reservation:
        """Takes a reservation out of its session: from here on the session touches the slots no more."""
        with self._state.lock:
            if session.closed:
                raise SessionLost("the session has ended; what it reserved is given up")
            found = session.reservations.get(number)
            if found is None:
                raise InvalidArgument(
                    f"the session has no reservation {number}: it was committed, aborted, or never made",
                    field="reservation",
                )
            want = len(found.rows) * sum(found.chunks)
            if checksums is not None and checksums.size != want:
                raise InvalidArgument(
                    f"{checksums.size} checksums for {len(found.rows)} blocks of {sum(found.chunks)} chunks; "
                    f"{want} are needed",
                    field="checksums", got=checksums.size, want=want,
                )  # fmt: skip
            del session.reservations[number]
            self._state.holdings.give(session, found.slots.size, found.bytes, found.positions)
            return found

    # --- commit, under the lock ----------------------------------------------------------------------------

    def _commit(self, reservation: Reservation, part: slice, sums: U64Array, stamp: int) -> bytes:
        state, rows = self._state, reservation.rows[part]
        alive = state.index.state[rows] != EVICTING  # else its parent, or its namespace, went meanwhile
        stored, spare = int(np.count_nonzero(alive)), self._spare(reservation, part, alive)
        every = stored == len(rows) and not np.count_nonzero(spare)
        first = 0
        for at, chunks in enumerate(reservation.chunks):
            good = slice(None) if every else np.flatnonzero(alive & ~spare[:, at])
            self._record(reservation, part, at, good, sums[part, first : first + chunks], stamp)
            if not every:
                state.dram.free(np.delete(reservation.slots[part, at], good))
            first += chunks
        self._show(reservation, rows if every else rows[alive], None if every else spare[alive])
        state.unhold(rows)
        state.counters["put_blocks_stored"] += stored
        state.counters["put_blocks_parent_missing"] += len(rows) - stored
        return np.where(alive, _STORED, _PARENT_MISSING).tobytes()

    def _spare(self, reservation: Reservation, part: slice, alive: Mask) -> Mask:
        """Slots that are not needed. One whose part was lost since it was reserved (on NVMe) is, unless another writer
        has come for it."""
        spare = reservation.spare[part]
        if not np.count_nonzero(spare):
            return spare
        spare, index, rows = spare.copy(), self._state.index, reservation.rows[part]
        for at, number in enumerate(reservation.parts):
            ready = index.ready[rows] >> np.uint64(number) & np.uint64(1)
            lost = np.flatnonzero(alive & spare[:, at] & (ready == 0))
            mine = lost[index.part_rows(rows[lost], number) < 0]
            mine = mine[: index.parts.max_parts - len(index.parts)]
            index.add_parts(rows[mine], number)
            spare[mine, at] = False
        return spare

    def _record(
        self, reservation: Reservation, part: slice, at: int, good: IntArray | slice, sums: U64Array, stamp: int
    ) -> None:
        """Writes the headers, then the locations, of one part of some blocks."""
        index, number = self._state.index, reservation.parts[at]
        rows = reservation.rows[part][good]
        count = len(rows)
        if not count:
            return
        cut = reservation.namespace.cuts[number]
        slots, generations = reservation.slots[part, at][good], reservation.generations[part, at][good]
        self._state.dram.record(
            Entries(
                slots=slots, generations=generations,
                namespaces=np.full(count, reservation.namespace.id, np.uint16), parts=np.full(count, number, np.uint8),
                keys=reservation.keys[part][good], parents=reservation.parents[part][good],
                blocks=reservation.blocks[part][good], lengths=np.full(count, cut.length, np.uint64),
                importance=index.importance[rows], stamps=np.full(count, stamp, np.uint32),
                chunks=np.full(count, cut.count, np.uint32), checksums=sums[good],
            )
        )  # fmt: skip
        at_rows = index.part_rows(rows, number)
        index.parts.slot[TierKind.DRAM][at_rows] = slots
        index.parts.generation[TierKind.DRAM][at_rows] = generations

    def _show(self, reservation: Reservation, rows: IntArray, spare: Mask | None) -> None:
        """From here on the blocks are found. ``spare``: parts that are not ours, None: there are none."""
        state, index = self._state, self._state.index
        before = index.ready[rows]
        fresh = len(rows) - int(np.count_nonzero(before))
        state.writing -= fresh
        mask: U64Array | np.uint64 = np.uint64(0)
        for at, part in enumerate(reservation.parts):
            new = len(rows) if spare is None else int(np.count_nonzero(~spare[:, at]))
            size = new * reservation.namespace.cuts[part].length
            reservation.namespace.bytes += size
            state.ready_bytes += size
            mask = mask | (np.uint64(1 << part) if spare is None else ~spare[:, at] * np.uint64(1 << part))
        index.ready[rows] = before | mask
        index.state[rows] = READY
        state.journal.changed(rows)
        if state.placement:
            state.placement.arrived(rows, mask & ~before)

    # --- give up, under the lock ---------------------------------------------------------------------------

    def _give_up(self, reservation: Reservation, part: slice) -> list[tuple[int, bytes]]:
        """Frees slots, and rows that nothing else is in; answers those rows that have blocks after them."""
        state, index = self._state, self._state.index
        state.dram.free(reservation.slots[part].reshape(-1))
        left = []
        rows, spares = reservation.rows[part], reservation.spare[part].tolist()
        for row, spare in zip(rows.tolist()[::-1], spares[::-1], strict=True):
            for number, unused in zip(reservation.parts, spare, strict=True):
                if not unused:
                    index.parts.drop(row, number)
            state.unhold(np.array([row]))
            if index.state_at[row] in (EVICTING, FREE) or index.first_part_at[row] >= 0:
                continue
            if index.children_at[row]:
                left.append((row, index.key(row)))
            else:
                state.drop(row, "aborted")
        return left

    def _drop_branch(self, namespace: int, row: int, key: bytes) -> None:
        """Drops an empty block and what others hung on it, unless a writer came meanwhile."""
        with self._state.lock:
            index = self._state.index
            empty = index.find_one(namespace, key) == row and index.first_part_at[row] < 0
        if empty:
            self._state.drop_subtree(row, "aborted")
