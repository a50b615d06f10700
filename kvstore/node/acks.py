"""What is acknowledged of a put beside what the store says: that as many nodes as are to hold the blocks do so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvstore.core.errors import Unsupported
from kvstore.core.keys import KeyArray
from kvstore.node.outcomes import NOT_REPLICATED, PRESENT, STORED
from kvstore.tiers.columns import IntArray
from kvstore.tiers.sessions import Session
from kvstore.tiers.values import AckLevel, ChainSlice

Alive = Callable[[], bool]  # whether the writer still waits


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of one chain, deepest last. ``at``: how deep each is, 0 and up; ``parent``: key of the block before the
    first one, empty for block 0."""

    handle: int
    keys: KeyArray
    at: IntArray
    parent: bytes


class Copies(Protocol):
    """Other nodes' copies of what is put here. Safe to use from several threads."""

    def replicated(self, handle: int, key: bytes, deadline: float | None, alive: Alive) -> int:
        """Has a chain, named by its last block, copied to as many nodes as are to hold it, and waits for that until a
        deadline (time.monotonic; None: a time of its own): how many leading blocks so many nodes hold, this one
        included."""

    def owe(self, handle: int, key: bytes, parent: bytes, new: int) -> None:
        """A chain, named by its last block, has ``new`` blocks here; ``parent``: its last one before those. It is
        copied soon; nobody waits."""


class Acks:
    """Joins puts to the copies of what they store. Without :meth:`join` this node alone holds it. ``most``: puts that
    wait at a time, None: as many as there are; a further one is told at once what is true."""

    def __init__(self, most: int | None = None) -> None:
        self._copies: Copies | None = None
        self._places = threading.BoundedSemaphore(most) if most else None

    def join(self, copies: Copies) -> None:
        self._copies = copies

    def check(self, ack: int) -> int:
        """The level that the store is asked for. Raises Unsupported; whether the store keeps "durable" depends on its
        NVMe tier, and it says so itself."""
        if ack in (AckLevel.VISIBLE, AckLevel.DURABLE):
            return ack
        if ack == AckLevel.REPLICATED and self._copies is not None:
            return AckLevel.VISIBLE
        known = ack == AckLevel.REPLICATED
        name = "replicated" if known else str(ack)
        why = "this node keeps one copy of a block; set replicas = 2 on all nodes of its cell, or use visible"
        raise Unsupported(
            f"acknowledgement level {name} is not possible: {why if known else 'it needs a newer version'}",
            field="ack",
            got=name,
            want="visible",
        )

    def held(self, session: Session, reservation: int) -> Blocks | None:
        """The blocks of a reservation that is not committed yet, for ``stored``; None: they need no copies, or there is
        no such reservation."""
        return held(session, reservation) if self._copies is not None else None

    def reserved(self, blocks: Blocks, outcomes: bytes, deadline: float | None, alive: Alive) -> bytes:
        """The outcomes of a reservation for a put that is to be replicated: blocks that were here before must have
        their copies too."""
        if self._copies is None:
            return outcomes
        return self._waited(self._copies, blocks, outcomes, (PRESENT,), deadline, alive)

    def stored(self, blocks: Blocks, outcomes: bytes, ack: int, deadline: float | None, alive: Alive) -> bytes:
        """The outcomes of blocks that were just committed, or found to be here."""
        if self._copies is None:
            return outcomes
        if ack == AckLevel.REPLICATED:
            return self._waited(self._copies, blocks, outcomes, (STORED, PRESENT), deadline, alive)
        last = outcomes.rfind(STORED)
        if last >= 0:
            new = outcomes.count(STORED)
            self._copies.owe(blocks.handle, blocks.keys[last].tobytes(), blocks.parent, new)
        return outcomes

    def _waited(
        self, copies: Copies, blocks: Blocks, outcomes: bytes, which: tuple[int, ...], deadline: float | None,
        alive: Alive,
    ) -> bytes:  # fmt: skip
        """The outcomes, with NOT_REPLICATED for those blocks of a kind that too few nodes hold in time."""
        codes = np.frombuffer(outcomes, np.uint8).copy()
        mine = np.flatnonzero(np.isin(codes, which))
        if not len(mine):
            return outcomes
        waits = self._places is None or self._places.acquire(blocking=False)
        try:
            until = deadline if waits else time.monotonic()
            reached = copies.replicated(blocks.handle, blocks.keys[mine[-1]].tobytes(), until, alive)
        finally:
            if waits and self._places is not None:
                self._places.release()
        codes[mine[blocks.at[mine] >= reached]] = NOT_REPLICATED
        return codes.tobytes()


def sliced(handle: int, chain: ChainSlice) -> Blocks:
    """The blocks of a put."""
    first = chain.first_block
    return Blocks(handle, chain.keys, np.arange(first, first + len(chain.keys)), chain.parent)


def held(session: Session, reservation: int) -> Blocks | None:
    """The blocks of a reservation that is not committed yet; None: there is no such reservation."""
    found = session.reservations.get(reservation)
    if found is None:
        return None
    parent = found.parents[0].tobytes() if found.blocks[0] else b""
    return Blocks(found.namespace.handle, found.keys, found.blocks.astype(np.int64), parent)
