"""A circuit breaker: after failures the node is left alone for a while, then tried once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

CLOSED, HALF_OPEN, OPEN = "closed", "half-open", "open"
STATES = (CLOSED, HALF_OPEN, OPEN)
LONGEST_PAUSE_S = 30.0


class Breaker:
    """Thread-safe. ``soft`` failures open it after ``soft_limit`` in a row, hard ones at once.

    While open nothing is tried. After the pause one caller is let through (half-open): its success closes the
    breaker, its failure doubles the pause, up to 30 s. A caller that never reports back gives up its turn after
    one further pause.
    """

    def __init__(
        self,
        name: str,
        pause_s: float = 1.0,
        soft_limit: int = 5,
        clock: Callable[[], float] = time.monotonic,
        log: logging.Logger | None = None,
    ) -> None:
        self.name = name
        self._first = pause_s
        self._soft_limit = soft_limit
        self._clock = clock
        self._log = log or logging.getLogger(__name__)
        self._lock = threading.Lock()
        self._pause = pause_s
        self._until = 0.0
        self._soft = 0
        self._state = CLOSED
        self.opened = 0  # how often

    @property
    def state(self) -> str:
        return self._state

    @property
    def level(self) -> int:
        """0 closed, 1 half-open, 2 open: the value of the gauge."""
        return STATES.index(self._state)

    @property
    def blocked(self) -> bool:
        """Whether ``allow`` would say no now; takes nobody's turn."""
        return self._state != CLOSED and self._clock() < self._until

    def allow(self) -> bool:
        """Whether to try now. In the half-open state only one caller at a time is told yes."""
        if self._state == CLOSED:
            return True
        with self._lock:
            now = self._clock()
            if self._state == CLOSED:
                return True
            if now < self._until:
                return False
            self._state, self._until = HALF_OPEN, now + self._pause
            return True

    def success(self) -> None:
        """The node answered."""
        self._soft = 0
        if self._state == CLOSED:
            return
        with self._lock:
            if self._state != CLOSED:
                self._state, self._pause = CLOSED, self._first
                self._log.info("kvstore: %s breaker closed, the node answers again", self.name)

    def failure(self, reason: str, soft: bool = False) -> None:
        """The node failed. ``soft``: it may only be slow."""
        with self._lock:
            if soft:
                self._soft += 1
                if self._soft < self._soft_limit and self._state != HALF_OPEN:
                    return
            if self._state == OPEN:
                return
            if self._state == HALF_OPEN:
                self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
            self._state, self._soft, self.opened = OPEN, 0, self.opened + 1
            self._until = self._clock() + self._pause
        self._log.warning(
            "kvstore: %s breaker open for %.1f s (%s); requests run as without a cache", self.name, self._pause, reason
        )
