"""Reserving: slots for the blocks of a put that are not here yet. Committing them is in committing.py."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import BadKey, InvalidArgument, SessionLost, UnknownNamespace
from kvstore.core.keys import KEY_BYTES, KeyArray, key_array
from kvstore.tiers.columns import IntArray
from kvstore.tiers.leases import Reservation
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.segments import SlotClass
from kvstore.tiers.sessions import Session
from kvstore.tiers.state import PIECE, State
from kvstore.tiers.tier import GRANULE, Slots, TierKind, U16Array
from kvstore.tiers.values import NO_GENERATIONS, NO_OFFSETS, ChainSlice, PutOutcome, Reserved

_ATTEMPTS = 8  # times that one piece of a put makes room before it says NO_SPACE
_SHIFT = np.uint64(GRANULE.bit_length() - 1)
_STORED = int(PutOutcome.STORED)
_UNSTORED = tuple(outcome for outcome in PutOutcome if outcome != PutOutcome.STORED)
MakeRoom = Callable[["SlotClass | None", int, float], int]


@dataclass(slots=True)
class _Piece:
    """Up to 256 consecutive keys of a put. ``parent``: key of the block before, b"" at block 0."""

    session: Session
    namespace: Namespace
    parts: tuple[int, ...]
    mask: int
    keys: KeyArray
    parent: bytes
    first: int
    request: int
    appended: int
    importance: U16Array | None


@dataclass(slots=True)
class _Plan:
    """What to do with the keys of a piece. ``rows``: -1 where absent. ``wanted``: positions that need slots."""

    rows: IntArray
    outcomes: npt.NDArray[np.uint8]
    parent: int
    wanted: npt.NDArray[np.int64]


class Writer:
    """``make_room(class, slots, deadline)`` evicts, answers how much it did, and is called without the lock."""

    def __init__(self, state: State, make_room: MakeRoom) -> None:
        self._state = state
        self._make_room = make_room

    def reserve(
        self, session: Session, namespace: Namespace, chain: ChainSlice, parts: tuple[int, ...], request: int,
        importance: U16Array | None, appended: int,
    ) -> Reserved:  # fmt: skip
        """Slots for those keys of ``chain`` that are not here. Raises InvalidArgument, BadKey, SessionLost."""
        _check(chain, importance)
        mask = sum(1 << part for part in parts)
        outcomes, made, deadline = [], [], time.monotonic() + self._state.config.room_wait
        for start in range(0, len(chain.keys), PIECE):
            parent = chain.keys[start - 1].tobytes() if start else chain.parent
            hints = None if importance is None else importance[start : start + PIECE]
            piece = _Piece(
                session, namespace, parts, mask, chain.keys[start : start + PIECE], parent,
                chain.first_block + start, request, appended, hints,
            )  # fmt: skip
            codes, reservation = self._reserve_piece(piece, deadline)
            outcomes.append(codes.tobytes())
            if reservation is not None:
                made.append(reservation)
        return self._answer(session, made, b"".join(outcomes))

    def _answer(self, session: Session, made: list[Reservation], codes: bytes) -> Reserved:
        with self._state.lock:
            if codes.count(_STORED) < len(codes):
                for outcome in _UNSTORED:
                    self._state.counters["put_blocks_" + outcome.name.lower()] += codes.count(outcome)
            if not made:
                return Reserved(0, codes, NO_OFFSETS, NO_GENERATIONS)
            whole = made[0] if len(made) == 1 else self._join(session, made)
        offsets = whole.slots.reshape(-1).astype(np.uint64) << _SHIFT
        return Reserved(whole.id, codes, offsets, whole.generations.reshape(-1))

    def _join(self, session: Session, made: list[Reservation]) -> Reservation:
        if session.closed:
            raise SessionLost("the session ended while it reserved")
        for one in made[1:]:
            del session.reservations[one.id]
        whole = Reservation.joined(made)
        session.reservations[whole.id] = whole
        return whole

    # --- one piece -----------------------------------------------------------------------------------------

    def _reserve_piece(self, piece: _Piece, deadline: float) -> tuple[npt.NDArray[np.uint8], Reservation | None]:
        state, last = self._state, False
        for attempt in range(_ATTEMPTS + 1):
            with state.lock:
                plan = self._plan(piece)
                count = 0 if state.draining and not piece.session.own else len(plan.wanted)
                slots, missing = self._allocate(piece, count, last or attempt == _ATTEMPTS)
                if not missing:
                    return plan.outcomes, self._insert(piece, plan, slots)
                anchors = _anchors(plan)  # what the new blocks hang on must not make room for them
                state.hold(anchors)
                if state.placement:
                    state.placement.anchors.update(anchors.tolist())
            try:
                last = not sum(self._make_room(kind, count, deadline) for kind, count in missing)
            finally:
                with state.lock:
                    state.unhold(anchors)
                    if state.placement:
                        state.placement.anchors -= Counter(anchors.tolist())
        raise AssertionError("unreachable: the last attempt takes what there is")

    def _plan(self, piece: _Piece) -> _Plan:
        if piece.session.closed:
            raise SessionLost("the session has ended; open a new one")
        if piece.namespace.dropping or piece.namespace.rotating:
            raise UnknownNamespace(
                "the namespace was dropped or rotated; open it again", root=piece.namespace.root.hex()
            )
        index, number = self._state.index, piece.namespace.id
        rows = index.find(number, piece.keys)
        parent = index.find_one(number, piece.parent) if piece.first else -1
        if parent >= 0 and index.block_at[parent] != piece.first - 1:
            raise InvalidArgument(
                f"first_block is {piece.first}, but its parent is block {index.block_at[parent]}", field="first_block"
            )
        size = sum(piece.namespace.cuts[part].length for part in piece.parts)
        room = self._state.holdings.room(piece.session, len(piece.parts), size)
        outcomes = np.full(len(rows), _STORED, np.uint8)
        if not np.count_nonzero(rows >= 0) and len(rows) <= room and (parent >= 0 or not piece.first):
            return _Plan(rows, outcomes, parent, np.arange(len(rows)))
        self._judge(piece, rows.tolist(), parent, room, outcomes)
        return _Plan(rows, outcomes, parent, np.flatnonzero(outcomes == _STORED))

    def _judge(self, piece: _Piece, rows: list[int], parent: int, room: int, outcomes: npt.NDArray[np.uint8]) -> None:
        """Key by key, where not simply all of them are new."""
        broken = PutOutcome.PARENT_MISSING if piece.first and parent < 0 else None
        for at, row in enumerate(rows):
            if row >= 0:
                outcome, broken = self._present(piece, row, at), None
            else:
                outcome = broken or PutOutcome.STORED
            if outcome == PutOutcome.STORED:
                room -= 1
                if room < 0:
                    outcome = PutOutcome.BUSY
                    broken = PutOutcome.BUSY if row < 0 else None
            outcomes[at] = outcome

    def _present(self, piece: _Piece, row: int, at: int) -> PutOutcome:
        """A key whose block is here: with all parts, with some being written, or with parts missing."""
        index = self._state.index
        if index.block_at[row] != piece.first + at:
            raise InvalidArgument(
                f"key {at} of the put is stored as block {index.block_at[row]}, not {piece.first + at}", field="keys"
            )
        missing = piece.mask & ~index.ready_at[row]
        if not missing:
            return PutOutcome.PRESENT
        if any(missing >> part & 1 and index.part_row(row, part) >= 0 for part in piece.parts):
            return PutOutcome.PENDING
        return PutOutcome.STORED

    def _allocate(
        self, piece: _Piece, count: int, last: bool
    ) -> tuple[list[Slots], list[tuple[SlotClass | None, int]]]:
        """``count`` slots for each part, or nothing and what must become free. ``last``: as many as there are."""
        state, index = self._state, self._state.index
        free = min(index.max_blocks - len(index), (index.parts.max_parts - len(index.parts)) // len(piece.parts))
        missing: list[tuple[SlotClass | None, int]] = [(None, count - free)] if free < count else []
        taken, short = [], set[SlotClass]()
        for part in piece.parts:
            cut = piece.namespace.cuts[part]
            slots = state.dram.allocate(cut.length, cut.count, count)
            if len(slots.slots) < count:
                short.add(state.dram.slot_class(cut.length, cut.count))
            taken.append(slots)
        if not missing and not short:
            return taken, []
        missing += self._wanted(piece, count, short)
        keep = min(free, *(len(slots.slots) for slots in taken)) if last else 0
        for slots in taken:
            if len(slots.slots) > keep:
                state.dram.free(slots.slots[keep:])
        return [Slots(slots.slots[:keep], slots.generations[:keep]) for slots in taken], [] if last else missing

    def _wanted(self, piece: _Piece, count: int, short: set[SlotClass]) -> list[tuple[SlotClass | None, int]]:
        """Slots of each class that has too few: how many must be free for the whole piece."""
        cuts = [piece.namespace.cuts[part] for part in piece.parts]
        kinds = [self._state.dram.slot_class(cut.length, cut.count) for cut in cuts]
        return [(kind, count * kinds.count(kind)) for kind in short]

    # --- rows ----------------------------------------------------------------------------------------------

    def _insert(self, piece: _Piece, plan: _Plan, slots: list[Slots]) -> Reservation | None:
        """Gives rows to the first of the wanted keys, as many as there are slots; the others get NO_SPACE."""
        count = len(slots[0].slots)
        wanted = plan.wanted[:count]
        if count < len(plan.wanted):
            plan.outcomes[plan.wanted[count:]] = PutOutcome.NO_SPACE
        if not count:
            return None
        state, index = self._state, self._state.index
        new = self._insert_runs(piece, plan, wanted)
        rows = plan.rows[wanted]
        spare = np.zeros((count, len(piece.parts)), np.bool_)
        for at, part in enumerate(piece.parts):
            if new < count:
                spare[:, at] = index.ready[rows] >> np.uint64(part) & np.uint64(1)
            index.add_parts(rows if new == count else rows[~spare[:, at]], part)
        state.hold(rows)
        if piece.importance is not None:
            index.importance[rows] = piece.importance[wanted]
        return self._enter(piece, rows, wanted, slots, spare)

    def _insert_runs(self, piece: _Piece, plan: _Plan, wanted: npt.NDArray[np.int64]) -> int:
        """Inserts those of the wanted keys that are absent, run by run: how many."""
        state = self._state
        new = wanted[plan.rows[wanted] < 0]
        if not len(new):
            return 0
        whole = int(new[-1]) - int(new[0]) + 1 == len(new)
        for run in [new] if whole else np.split(new, np.flatnonzero(np.diff(new) != 1) + 1):
            start, stop = int(run[0]), int(run[-1]) + 1
            parent = int(plan.rows[start - 1]) if start else plan.parent
            state.policy.catch_up()
            rows = state.index.insert_run(piece.namespace.id, piece.keys[start:stop], parent, piece.first + start)
            plan.rows[start:stop] = rows
            if state.placement:
                state.placement.residence.enter(rows, TierKind.DRAM)
            state.policy.inserted(rows, parent, piece.request, piece.appended, time.monotonic())
        piece.namespace.rows += len(new)
        state.writing += len(new)
        return len(new)

    def _enter(
        self, piece: _Piece, rows: IntArray, wanted: npt.NDArray[np.int64], slots: list[Slots],
        spare: npt.NDArray[np.bool_],
    ) -> Reservation:  # fmt: skip
        holdings, session = self._state.holdings, piece.session
        size = len(rows) * sum(piece.namespace.cuts[part].length for part in piece.parts)
        addresses = _columns([one.slots for one in slots])
        positions = holdings.take(session, addresses.reshape(-1), size)
        keys, parents = piece.keys, _parents(piece)
        if len(wanted) < len(keys):
            keys, parents = keys[wanted], parents[wanted]
        reservation = Reservation(
            id=holdings.next_id(), namespace=piece.namespace, parts=piece.parts, keys=keys, parents=parents,
            blocks=(piece.first + wanted).astype(np.uint32), rows=rows,
            slots=addresses, generations=_columns([one.generations for one in slots]), spare=spare,
            bytes=size, positions=positions,
        )  # fmt: skip
        session.reservations[reservation.id] = reservation
        return reservation


def _columns(parts: list[npt.NDArray[np.uint32]]) -> npt.NDArray[np.uint32]:
    return parts[0][:, None] if len(parts) == 1 else np.stack(parts, axis=1)


def _anchors(plan: _Plan) -> IntArray:
    """Rows that a put hangs on: its parent, and the keys that are here already."""
    here = plan.rows[plan.rows >= 0]
    return here if plan.parent < 0 else np.append(here, plan.parent)


def _parents(piece: _Piece) -> KeyArray:
    """Key of the block before each key; zeros before block 0."""
    first = key_array(piece.parent) if piece.first else np.zeros((1, 2), np.uint64)
    return np.concatenate((first, piece.keys[:-1]))


def _check(chain: ChainSlice, importance: U16Array | None) -> None:
    """Raises InvalidArgument or BadKey unless the slice can be part of a chain."""
    if chain.first_block and len(chain.parent) != KEY_BYTES:
        raise BadKey(f"the parent of block {chain.first_block} is {len(chain.parent)} bytes, not {KEY_BYTES}")
    if chain.first_block < 0 or chain.first_block + len(chain.keys) > 0xFFFFFFFF:
        raise InvalidArgument(f"first_block is {chain.first_block}, not 0 to 4294967295", field="first_block")
    if importance is not None and len(importance) != len(chain.keys):
        raise InvalidArgument(
            f"{len(importance)} importance hints for {len(chain.keys)} keys; give one a key, or none",
            field="importance",
        )
    if len(set(chain.keys[:, 0].tolist())) < len(chain.keys):
        whole = {(low, high) for low, high in chain.keys.tolist()}
        if len(whole) < len(chain.keys):
            raise InvalidArgument(
                "a key stands twice in one put; blocks of one chain have different keys", field="keys"
            )
