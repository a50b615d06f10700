"""Ending a call early from another thread: its connection is interrupted, its copying stops at the next part."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore.transport.wire import Wire


class Cancel:
    """Belongs to one call. ``cancelled`` once nobody waits for its result any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wire: Wire | None = None
        self._parts: list[Cancel] = []
        self.cancelled = False

    def cancel(self) -> None:
        """Makes the call end soon. Safe at any time, also after its end."""
        with self._lock:
            self.cancelled = True
            if self._wire is not None:
                self._wire.interrupt()
            parts = list(self._parts)
        for part in parts:
            part.cancel()

    def part(self) -> Cancel:
        """Of the same call, for what another thread does of it."""
        part = Cancel()
        with self._lock:
            self._parts.append(part)
            part.cancelled = self.cancelled
        return part

    def using(self, wire: Wire | None) -> None:
        """The call waits on this connection from now on (None: on no one)."""
        with self._lock:
            self._wire = wire
            if wire is not None and self.cancelled:
                wire.interrupt()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Calls of this thread belong to it meanwhile."""
        _local.cancel = self
        try:
            yield
        finally:
            _local.cancel = None


class _Local(threading.local):
    cancel: Cancel | None = None


_local = _Local()


def current() -> Cancel | None:
    """What may cancel the call that this thread is in."""
    return _local.cancel


def cancelled() -> bool:
    """Whether the call that this thread is in was cancelled."""
    cancel = current()
    return cancel is not None and cancel.cancelled
