"""What the memory file learns a little later: when slots and namespaces were last used."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import READY
from kvstore.tiers.state import PIECE, State
from kvstore.tiers.tier import NO_SLOT, TierKind

_EVERY = 0.2  # seconds
_GATHERED = 65_536  # rows
_USES_EVERY = 5.0
_NVME_EVERY = 30.0  # a stamp there costs a rewritten entry


class Housekeeper:
    """Takes what readers noted in ``touches`` and writes it into slot headers, off their path."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._saved = 0.0
        self._on_nvme: set[int] = set()  # slots used since their stamps were written
        self._stamped = time.monotonic()

    def step(self) -> float:
        """One round; seconds until the next."""
        self.learn()
        self.flush(last=False)
        return _EVERY

    def learn(self) -> None:
        """The eviction policy learns of reads and writes since the last time; after a reply, or at the latest here."""
        if self._state.policy.behind:
            with self._state.lock:
                self._state.policy.catch_up()

    def flush(self, last: bool = True) -> None:
        """Writes everything noted so far; to NVMe only now and then, or when it is the ``last`` time."""
        stamp = int(time.time())
        for rows in self._touched():
            for start in range(0, len(rows), PIECE):
                with self._state.lock:
                    self._stamp(rows[start : start + PIECE], stamp)
        if stamp - self._saved >= _USES_EVERY:
            self._saved = stamp
            with self._state.lock:
                self._state.namespaces.save_use()

        if self._on_nvme and (last or time.monotonic() - self._stamped > _NVME_EVERY):
            self._stamped = time.monotonic()
            self._stamp_nvme(stamp)

    def _touched(self) -> Iterator[IntArray]:
        """Rows noted so far, each once among some thousands: what is read often is not stamped as often."""
        touches, found, count = self._state.touches, list[IntArray](), 0
        for left in range(len(touches) - 1, -1, -1):
            found.append(touches.popleft())
            count += len(found[-1])
            if count >= _GATHERED or not left:
                yield np.unique(np.concatenate(found))
                found, count = [], 0

    def _stamp_nvme(self, stamp: int) -> None:
        slots, self._on_nvme = np.array(list(self._on_nvme), np.uint32), set()
        if self._state.placement:
            self._state.placement.nvme.stamp(slots, stamp)

    def _stamp(self, rows: IntArray, stamp: int) -> None:
        """Rows may have gone meanwhile: then another block looks a little younger than it is."""
        index = self._state.index
        rows = rows[(index.state[rows] == READY) & (index.first_part[rows] >= 0)]
        at = index.first_part[rows]
        slots = index.parts.slot[TierKind.DRAM][at]
        slots = slots[slots != np.uint32(NO_SLOT)]
        if len(slots):
            self._state.dram.stamp(slots, stamp)
        if self._state.placement:
            there = index.parts.slot[TierKind.NVME][at[self._state.placement.on_nvme[rows] > 0]]
            there = there[there != np.uint32(NO_SLOT)]
            self._on_nvme.update(there.tolist())
