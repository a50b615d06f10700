"""Threads that work ahead of demand. Each does small steps and stops promptly; a failing step is logged and counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)
_PAUSE_AFTER_ERROR = 1.0  # seconds


class Background:
    """Calls ``step`` again and again; it answers after how many seconds it wants the next call (None: when woken)."""

    def __init__(self, name: str, step: Callable[[], float | None], failed: Callable[[str], None]) -> None:
        self._step = step
        self._failed = failed
        self._stop = threading.Event()
        self.wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kvstore-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                delay = self._step()
            except Exception:
                if self._stop.is_set():
                    return
                log.exception("%s failed; trying again in %g s", self._thread.name, _PAUSE_AFTER_ERROR)
                self._failed(self._thread.name)
                delay = _PAUSE_AFTER_ERROR
            self.wake.wait(delay)
            self.wake.clear()

    def stop(self) -> None:
        """Returns when the thread has ended, after its present step."""
        self._stop.set()
        self.wake.set()
        self._thread.join()
