"""Leases and reservations: what a session holds, and the rows and slots behind it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import IntArray
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.sessions import Session, SessionTable
from kvstore.tiers.tier import SlotArray, U32Array
from kvstore.tiers.values import Held

NO_ROWS: IntArray = np.empty(0, np.int64)


@dataclass(slots=True)
class Lease:
    """Rows a session holds, and its permissions to touch their slots (None: a network session needs none)."""

    id: int
    rows: IntArray
    slots: int
    bytes: int
    positions: npt.NDArray[np.int64] | None
    since: float = 0.0  # on time.monotonic


@dataclass(slots=True)
class Reservation:
    """Slots that a session fills. Columns by key, shape (n,); ``slots``, ``generations`` (n, parts).

    ``spare``: shape (n, parts), True where another writer's part is READY already: a slot to write into all the
    same, dropped at commit. ``chunks``: checksums of one block by part.
    """

    id: int
    namespace: Namespace
    parts: tuple[int, ...]
    keys: KeyArray
    parents: KeyArray
    blocks: U32Array
    rows: IntArray
    slots: npt.NDArray[np.uint32]
    generations: npt.NDArray[np.uint32]
    spare: npt.NDArray[np.bool_]
    bytes: int
    positions: npt.NDArray[np.int64] | None

    @classmethod
    def joined(cls, pieces: list[Reservation]) -> Reservation:
        """Reservations of consecutive pieces of one put as one, under the id of the first."""
        names = ("keys", "parents", "blocks", "rows", "slots", "generations", "spare")
        columns = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}
        noted = [piece.positions for piece in pieces if piece.positions is not None]
        return cls(
            id=pieces[0].id, namespace=pieces[0].namespace, parts=pieces[0].parts,
            bytes=sum(piece.bytes for piece in pieces), positions=np.concatenate(noted) if noted else None, **columns,
        )  # fmt: skip

    @property
    def chunks(self) -> list[int]:
        return [self.namespace.cuts[part].count for part in self.parts]


def held(sessions: Iterable[Session]) -> Held:
    """Called under the lock."""
    now, found = time.monotonic(), Held()
    for session in sessions:
        reserved = sum(one.bytes for one in session.reservations.values())
        oldest = next(iter(session.leases.values()), None)  # they are in the order in which they were given
        age = now - oldest.since if oldest is not None and oldest.since else 0.0
        found = Held(
            found.leases + len(session.leases), found.leased_bytes + max(0, session.bytes_held - reserved),
            max(found.oldest_lease, age), found.reservations + len(session.reservations),
            found.reserved_bytes + reserved,
        )  # fmt: skip
    return found


class Holdings:
    """Keeps what sessions hold within bounds, and on record in the memory file. The store's lock guards it."""

    def __init__(self, table: SessionTable, max_bytes: int) -> None:
        self.table = table
        self.max_slots = table.max_leased_slots
        self.max_bytes = max_bytes
        self._last = 0

    def next_id(self) -> int:
        self._last += 1
        return self._last

    def room(self, session: Session, slots: int, size: int) -> int:
        """How many more units of ``slots`` slots and ``size`` bytes the session may hold."""
        by_slots = (self.max_slots - session.slots_held) // max(1, slots)
        return max(0, min(by_slots, (self.max_bytes - session.bytes_held) // max(1, size)))

    def take(self, session: Session, slots: SlotArray, size: int) -> npt.NDArray[np.int64] | None:
        """The session holds these slots from now on; on record before this returns."""
        session.slots_held += len(slots)
        session.bytes_held += size
        return self.table.permit(session, slots) if session.shared_memory else None

    def give(self, session: Session, slots: int, size: int, positions: npt.NDArray[np.int64] | None) -> None:
        """The session touches them no more."""
        session.slots_held -= slots
        session.bytes_held -= size
        if positions is not None:
            self.table.withdraw(session, positions)


def flat(columns: list[U32Array]) -> U32Array:
    """Columns by part as one block-major array."""
    if len(columns) == 1:
        return columns[0]
    return np.ascontiguousarray(np.stack(columns, axis=1)).reshape(-1)
