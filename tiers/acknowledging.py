"""Puts and what is acknowledged of them: visible, or durable, and nothing before it is true."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import Unsupported
from kvstore.core.keys import KeyArray
from kvstore.tiers.committing import Committer
from kvstore.tiers.movement import Movement
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.sessions import Session
from kvstore.tiers.state import State
from kvstore.tiers.tier import U16Array, U64Array
from kvstore.tiers.values import AckLevel, ChainSlice, PutOutcome, Reserved
from kvstore.tiers.writing import Writer


class Puts:
    """Reserving and committing at an acknowledgement level. ``movement``: of a store with an NVMe tier; ``absent``: it
    has one that could not be opened."""

    def __init__(
        self, state: State, writer: Writer, committer: Committer, movement: Movement | None, absent: bool = False
    ) -> None:
        self._state = state
        self._writer = writer
        self._committer = committer
        self._movement = movement
        self._absent = absent

    def reserve(
        self, session: Session, namespace: Namespace, chain: ChainSlice, parts: tuple[int, ...], request: int,
        importance: U16Array | None, appended: int, ack: int, deadline: float | None,
    ) -> Reserved:  # fmt: skip
        """As BlockStore.reserve."""
        reserved = self._writer.reserve(session, namespace, chain, parts, request, importance, appended)
        if ack != AckLevel.DURABLE or PutOutcome.PRESENT not in reserved.outcomes:
            return reserved
        outcomes = self._made_durable(namespace, chain.keys, reserved.outcomes, PutOutcome.PRESENT, deadline)
        return replace(reserved, outcomes=outcomes)

    def commit(
        self, session: Session, reservation: int, checksums: U64Array, ack: int, deadline: float | None
    ) -> bytes:
        """As BlockStore.commit."""
        found = session.reservations.get(reservation)
        outcomes = self._committer.commit(session, reservation, checksums)
        if found is None:
            return outcomes
        if ack == AckLevel.DURABLE:
            return self._made_durable(found.namespace, found.keys, outcomes, PutOutcome.STORED, deadline)
        if self._movement and self._movement.demoter.rule == "through":
            self._movement.durability.copy(found.namespace, found.keys)
        return outcomes

    def _made_durable(
        self, namespace: Namespace, keys: KeyArray, outcomes: bytes, which: PutOutcome, deadline: float | None
    ) -> bytes:
        """The outcomes, with NOT_DURABLE for those of one kind that are not durable in time, NO_SPACE for those of them
        that are not here any more."""
        codes = np.frombuffer(outcomes, np.uint8).copy()
        mine = np.flatnonzero(codes == which)
        until = time.monotonic() + self._state.config.durable_wait if deadline is None else deadline
        if self._movement is not None:
            mine = mine[~self._movement.durability.wait(namespace, keys[mine], until)]
        codes[mine] = PutOutcome.NOT_DURABLE
        if self._movement is not None:  # for lack of room some may have had to go since they were stored
            codes[mine[self._movement.durability.absent(namespace, keys[mine])]] = PutOutcome.NO_SPACE
        self._count(codes[mine])
        return codes.tobytes()

    def _count(self, late: npt.NDArray[np.uint8]) -> None:
        with self._state.lock:
            for outcome in (PutOutcome.NOT_DURABLE, PutOutcome.NO_SPACE) if len(late) else ():
                self._state.counters["put_blocks_" + outcome.name.lower()] += int(np.count_nonzero(late == outcome))

    def check_ack(self, ack: int) -> None:
        """Raises Unsupported when this store never keeps what it would say. A disk in trouble is no reason: blocks are
        stored all the same, and NOT_DURABLE."""
        if ack == AckLevel.VISIBLE:
            return
        kept = self._absent or self._movement is not None
        if ack != AckLevel.DURABLE or not kept or self._state.config.nvme_write_rule == "off":
            name = AckLevel(ack).name.lower() if ack in list(AckLevel) else str(ack)
            raise Unsupported(
                f"acknowledgement level {name!r} is not supported by this node as it is configured; use 'visible'",
                ack=name,
            )
