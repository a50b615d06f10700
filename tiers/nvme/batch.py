"""What one commit carries, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvstore.tiers.nvme.format import ENTRY, EntryArray
from kvstore.tiers.nvme.index import IndexProcess, Meta
from kvstore.tiers.nvme.ticket import Outcome, Ticket
from kvstore.tiers.tier import SlotArray, U32Array


class Barrier:
    """Set when everything queued before it was committed, or could not be."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.reason = ""


@dataclass
class Batch:
    """Index changes: puts, then removals. ``synced``: the bytes of its entries are."""

    written: list[tuple[Ticket, int]] = field(default_factory=list)
    removed: list[SlotArray] = field(default_factory=list)  # slots to be given out again afterwards
    forgotten: set[int] = field(default_factory=set)  # slots that stay given out
    stamps: dict[int, int] = field(default_factory=dict)  # last use by slot
    metas: list[Meta] = field(default_factory=list)
    notes: dict[bytes, bytes] = field(default_factory=dict)  # settings
    barriers: list[Barrier] = field(default_factory=list)
    synced: bool = False

    def __len__(self) -> int:
        removed = sum(map(len, self.removed)) + len(self.forgotten)
        return len(self.written) + removed + len(self.metas) + len(self.notes) + len(self.stamps)

    def removals(self) -> U32Array:
        """Slots whose entries go."""
        return np.concatenate([*self.removed, np.array(sorted(self.forgotten), np.uint32)]).astype(np.uint32)

    def fail(self, positions: Sequence[bool], reason: str) -> None:
        """Fails some of the entries and takes them out."""
        pairs = list(zip(self.written, positions, strict=True))
        settle([pair for pair, gone in pairs if gone], Outcome.FAILED, reason)
        self.written = [pair for pair, gone in pairs if not gone]
        for barrier in self.barriers:
            barrier.reason = reason

    def requeue(self, queue: Batch) -> None:
        """The removals go before those of ``queue``, to be tried again."""
        again = {int(ticket.entries[at]["slot"]) for ticket, at in queue.written}
        queue.removed[:0], queue.metas[:0] = self.removed, self.metas
        queue.notes = self.notes | queue.notes
        queue.forgotten |= self.forgotten - again

    def give_up(self, reason: str) -> None:
        """Fails all entries. Calls those who wait, so no lock may be held."""
        settle(self.written, Outcome.FAILED, reason)
        release(self.barriers, reason)


def slots_of(written: Sequence[tuple[Ticket, int]]) -> U32Array:
    """Slot of each entry."""
    return np.array([ticket.entries[at]["slot"] for ticket, at in written], np.uint32)


def packed(written: Sequence[tuple[Ticket, int]]) -> EntryArray:
    """The entries in one array."""
    out: EntryArray = np.empty(len(written), ENTRY)
    for at, (ticket, position) in enumerate(written):
        out[at] = ticket.entries[position]
    return out


def stamped(index: IndexProcess, stamps: dict[int, int]) -> EntryArray:
    """The entries there are of these slots, with the new stamps. Puts and removals of the same commit go over them."""
    if not stamps:
        return np.empty(0, ENTRY)
    entries: EntryArray = np.frombuffer(index.get(np.array(list(stamps), ">u4").tobytes()), ENTRY).copy()
    entries["stamp"] = [stamps[slot] for slot in entries["slot"].tolist()]
    return entries


def settle(written: Sequence[tuple[Ticket, int]], outcome: Outcome, reason: str = "") -> None:
    """Final outcome of entries."""
    by_ticket: dict[int, tuple[Ticket, list[int]]] = {}
    for ticket, position in written:
        by_ticket.setdefault(id(ticket), (ticket, []))[1].append(position)
    for ticket, positions in by_ticket.values():
        ticket.settle(positions, outcome, reason)


def release(barriers: list[Barrier], reason: str = "") -> None:
    """Sets barriers."""
    for barrier in barriers:
        barrier.reason = barrier.reason or reason
        barrier.done.set()
    barriers.clear()
