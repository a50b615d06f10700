"""Waits that grow, and a sentence about what is wrong."""

from __future__ import annotations

import logging
import random
import time

_FIRST = 0.05  # seconds
_MOST = 5.0
_STEADY = 10.0


class Backoff:
    """The wait after each failure in a row, doubled, with jitter so that a cell does not knock in step."""

    def __init__(self, first: float = _FIRST, most: float = _MOST) -> None:
        self._first = first
        self._most = most
        self._next = first
        self._failed = time.monotonic()

    def wait(self) -> float:
        """Seconds to wait now. After a longer time without a failure it starts small again."""
        now = time.monotonic()
        if now - self._failed > _STEADY:
            self._next = self._first
        self._failed = now
        bound, self._next = self._next, min(self._most, 2 * self._next)
        return bound * random.uniform(0.5, 1.0)


class Trouble:
    """What is wrong with one activity, for people; logged when it begins and ends."""

    def __init__(self, log: logging.Logger, activity: str) -> None:
        self._log = log
        self._activity = activity
        self.text = ""

    def begins(self, why: object) -> None:
        if not self.text:
            self._log.warning("%s: %s; it is tried again", self._activity, why)
        self.text = f"{self._activity}: {why}"

    def ends(self) -> None:
        if self.text:
            self._log.info("%s works again", self._activity)
        self.text = ""
