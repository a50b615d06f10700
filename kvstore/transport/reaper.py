"""One background thread a process: releases what died outside of any call, and keeps idle network sessions alive.

A finalizer may run in the middle of anything, also while its thread holds our locks. So it only appends to a
queue made for that; the thread does the rest. It holds transports weakly and ends when there are none.
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

_LONGEST_WAIT = 5.0  # seconds
_PING_TIMEOUT = 1.0


class Reaper:
    def __init__(self) -> None:
        self._pid = os.getpid()
        self._dead: queue.SimpleQueue[tuple[Transport, int] | None] = queue.SimpleQueue()
        self._watched: weakref.WeakSet[Transport] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, transport: Transport) -> None:
        """Keeps an idle session alive for as long as its transport is."""
        with self._lock:
            self._watched.add(transport)
        self.start()
        self._dead.put(None)

    def start(self) -> None:
        """Makes sure the thread runs. Not for finalizers."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvstore-reaper", daemon=True)
                self._thread.start()

    def release(self, transport: Transport, lease: int) -> None:
        """Gives a lease back soon. Safe in a finalizer."""
        if os.getpid() == self._pid:
            self._dead.put((transport, lease))

    def _run(self) -> None:
        while True:
            try:
                item = self._dead.get(timeout=self._wait())
            except queue.Empty:
                item = None
            if item is not None:
                transport, lease = item
                transport.give_lease_back(lease)
                del transport, item
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
