"""Counters that only grow, for several threads."""

from __future__ import annotations

import logging
import threading

_log = logging.getLogger(__name__)


class Counts:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}

    def add(self, name: str, amount: float) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + amount

    def all(self) -> dict[str, float]:
        with self._lock:
            return dict(self._counts)

    def surprised(self, what: str) -> None:
        """Within ``except``: an error that nobody expected."""
        _log.exception("%s", what)
        self.add("failed_error", 1)
