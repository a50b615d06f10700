"""Tickets: what became of a batch of writes. Written first, durable later, or failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvstore.tiers.nvme.format import EntryArray


class Outcome(IntEnum):
    """Of one slot of a batch. WRITTEN: readable. DURABLE: survives a power loss. FAILED: the caller frees it."""

    WAITING = 0
    WRITTEN = 1
    DURABLE = 2
    FAILED = 3


class Ticket:
    """Outcome of each slot of one batch, shape (n,). Thread-safe."""

    def __init__(self, entries: EntryArray) -> None:
        self.entries = entries
        self.outcomes: npt.NDArray[np.uint8] = np.zeros(len(entries), np.uint8)
        self.reason = ""  # of the last failure
        self._unwritten = self._unsettled = len(entries)
        self._callbacks: list[Callable[[Ticket], None]] = []
        self._changed = threading.Condition()

    def wait_written(self, timeout: float | None = None) -> bool:
        """Waits until every slot is written or failed; False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unwritten, timeout)

    def wait_durable(self, timeout: float | None = None) -> bool:
        """Waits until every slot is durable or failed; False on timeout. ``outcomes`` says which."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unsettled, timeout)

    @property
    def durable(self) -> bool:
        """Whether all of it is durable."""
        return bool((self.outcomes == Outcome.DURABLE).all())

    def on_settled(self, callback: Callable[[Ticket], None]) -> None:
        """Calls back once every slot is durable or failed, at once if it is so. On an internal thread: be quick."""
        with self._changed:
            if self._unsettled:
                self._callbacks.append(callback)
                return
        callback(self)

    # --- for the tier ------------------------------------------------------------------------------------------

    def written(self, position: int) -> None:
        with self._changed:
            self.outcomes[position] = Outcome.WRITTEN
            self._unwritten -= 1
            if not self._unwritten:
                self._changed.notify_all()

    def settle(self, positions: npt.NDArray[np.int64] | list[int], outcome: Outcome, reason: str = "") -> None:
        """Final outcome of some slots."""
        with self._changed:
            old = self.outcomes[positions]
            self._unwritten -= int((old == Outcome.WAITING).sum())
            self.outcomes[positions] = outcome
            self._unsettled -= len(positions)
            self.reason = reason or self.reason
            callbacks: list[Callable[[Ticket], None]] = []
            if not self._unsettled:
                callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            callback(self)
