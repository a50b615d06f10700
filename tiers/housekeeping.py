"""What the memory file learns a little later: when slots and namespaces were last used."""

from __future__ import annotations

import time

import numpy as np

from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import READY
from kvstore.tiers.state import PIECE, State
from kvstore.tiers.tier import NO_SLOT, TierKind

_EVERY = 0.2  # seconds
_USES_EVERY = 5.0


class Housekeeper:
    """Takes what readers noted in ``touches`` and writes it into slot headers, off their path."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._saved = 0.0

    def step(self) -> float:
        """One round; seconds until the next."""
        self.flush()
        return _EVERY

    def flush(self) -> None:
        """Writes everything noted so far."""
        stamp, touches = int(time.time()), self._state.touches
        for _ in range(len(touches)):
            rows = touches.popleft()
            for start in range(0, len(rows), PIECE):
                with self._state.lock:
                    self._stamp(rows[start : start + PIECE], stamp)
        if stamp - self._saved >= _USES_EVERY:
            self._saved = stamp
            with self._state.lock:
                self._state.namespaces.save_use()

    def _stamp(self, rows: IntArray, stamp: int) -> None:
        """Rows may have gone meanwhile: then another block looks a little younger than it is."""
        index = self._state.index
        rows = rows[(index.state[rows] == READY) & (index.first_part[rows] >= 0)]
        slots = index.parts.slot[TierKind.DRAM][index.first_part[rows]]
        slots = slots[slots != np.uint32(NO_SLOT)]
        if len(slots):
            self._state.dram.stamp(slots, stamp)
