"""One background thread a process: gives leases back when no call did, and keeps idle network sessions alive.

A finalizer may run in the middle of anything, also while its thread holds our locks. So it only appends to queues
made for that; this thread does the rest. Sessions without leases to give back are held weakly.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING

from kvstore.core.errors import KVStoreError

if TYPE_CHECKING:
    from kvstore.transport.base import Transport

_TICK = 0.01  # seconds a lease may outlive its use: until then the next request takes it along
_LONGEST_WAIT = 5.0  # seconds
_PING_TIMEOUT = 1.0


class Reaper:
    def __init__(self) -> None:
        self._pid = os.getpid()
        self._wake: queue.SimpleQueue[Transport | None] = queue.SimpleQueue()
        self._tended: set[Transport] = set()
        self._watched: weakref.WeakSet[Transport] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, transport: Transport) -> None:
        """Keeps an idle session alive for as long as its transport is."""
        with self._lock:
            self._watched.add(transport)
        self.start()
        self._wake.put(None)

    def start(self) -> None:
        """Makes sure the thread runs. Not for finalizers."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvstore-reaper", daemon=True)
                self._thread.start()

    def tend(self, transport: Transport) -> None:
        """Calls ``transport.tick()`` every few milliseconds until it returns False. Safe in a finalizer."""
        if os.getpid() == self._pid:
            self._wake.put(transport)

    def _run(self) -> None:
        next_tick = 0.0
        while True:
            try:
                woken = self._wake.get(timeout=_TICK if self._tended else self._wait())
                if woken is not None:
                    self._tended.add(woken)
                    next_tick = max(next_tick, time.monotonic() + _TICK)
                del woken
            except queue.Empty:
                pass
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + _TICK
                self._tended = {transport for transport in self._tended if transport.tick()}
                self._ping()

    def _wait(self) -> float:
        with self._lock:
            beats = [transport.node.heartbeat_seconds for transport in self._watched if not transport.lost]
        return max(0.01, min([_LONGEST_WAIT, *(beat / 4 for beat in beats if beat > 0)]))

    def _ping(self) -> None:
        now = time.monotonic()
        with self._lock:
            idle = [
                transport
                for transport in self._watched
                if not transport.lost and 0 < transport.node.heartbeat_seconds < 2 * (now - transport.pool.last_used)
            ]
        for transport in idle:
            try:
                transport.ping(now + _PING_TIMEOUT)
            except KVStoreError:
                transport.retire()

    def after_fork(self) -> None:
        self.__init__()  # type: ignore[misc]


REAPER = Reaper()
os.register_at_fork(after_in_child=REAPER.after_fork)
