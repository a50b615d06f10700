"""One bandwidth for all that copies in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvstore.cluster.copies import Bandwidth

BURST = 0.25  # seconds of the bandwidth that are used at once
_LOOK = 0.02  # seconds


class Pace:
    """``rate``: bytes a second. Safe to use from several threads; ``stopping`` ends all waits."""

    def __init__(self, rate: int, stopping: threading.Event, clock: Callable[[], float]) -> None:
        self.burst = max(1, int(rate * BURST))
        self._bandwidth = Bandwidth(rate, self.burst, clock())
        self._stopping = stopping
        self._clock = clock
        self._lock = threading.Lock()

    def allows(self, size: int) -> bool:
        """Waits until so many bytes may be moved. False: the node stops."""
        while not self._take(size):
            if self._stopping.wait(_LOOK):
                return False
        return True

    def _take(self, size: int) -> bool:
        with self._lock:
            return self._bandwidth.take(size, self._clock())
