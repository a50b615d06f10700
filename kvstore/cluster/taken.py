"""How much of new blocks each node took lately: what placement calls its load."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

MEMORY = (
    200.0  # seconds after which half of it is forgotten: with 60 the nodes of a full cell turn over at different speeds
)
_SETTLED = 1.0  # seconds between steps of forgetting


class Taken:
    """By number of the node. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bytes: dict[int, float] = {}
        self._at = clock()

    def add(self, node: int, count: int) -> None:
        with self._lock:
            self._forget()
            self._bytes[node] = self._bytes.get(node, 0.0) + count

    def drop(self, node: int) -> None:
        """The number may be given to another node."""
        with self._lock:
            self._bytes.pop(node, None)

    def by_node(self) -> dict[int, int]:
        with self._lock:
            self._forget()
            return {node: int(count) for node, count in self._bytes.items()}

    def _forget(self) -> None:
        now = self._clock()
        if now - self._at >= _SETTLED:
            left = 0.5 ** ((now - self._at) / MEMORY)
            self._at = now
            self._bytes = {node: count * left for node, count in self._bytes.items()}
