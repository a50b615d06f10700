"""Calls that were too late: whether the node still answers at all, and replies that come when nobody waits for them."""

from __future__ import annotations

import threading
import time

HUNG_SECONDS = 0.5  # waited without any answer: a node that lets so much pass is not asked for a while


class Silence:
    """How long calls have waited for a node that answered none meanwhile. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = -1.0
        self._waited = 0.0

    def waited(self, began: float, answered: float = 0.0) -> None:
        """A call has waited since ``began`` in vain; the last answer to any call came at ``answered``."""
        now = time.monotonic()
        with self._lock:
            if answered > self._since:
                self._since, self._waited = max(began, answered), 0.0
            self._waited += max(0.0, now - max(began, answered))

    @property
    def hung(self) -> bool:
        """Whether it is the node that is late, not the calls that were in a hurry. Two threads that wait at the same
        time count once."""
        with self._lock:
            return min(self._waited, time.monotonic() - self._since) >= HUNG_SECONDS

    def failed(self) -> None:
        """It was found to be hung; half as much finds it so again."""
        with self._lock:
            self._waited = HUNG_SECONDS / 2
