"""Where this client put chains a moment ago: the home node hears of that only with the next events."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from kvstore.core.keys import KEY_BYTES

KNOWN_AFTER = 2.0  # seconds until the home node knows it too
_KEPT = 256


@dataclass(frozen=True, slots=True)
class Put:
    """The first ``blocks`` blocks of a chain are at a node since ``at`` (time.monotonic)."""

    node_id: bytes
    address: str
    blocks: int
    at: float


class Recent:
    """Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._puts: OrderedDict[bytes, Put] = OrderedDict()  # by root and key of the last block

    def note(self, root: bytes, key: bytes, node_id: bytes, address: str, blocks: int) -> None:
        """A chain of so many blocks that ends with ``key``."""
        with self._lock:
            self._puts[root + key] = Put(node_id, address, blocks, self._clock())
            self._puts.move_to_end(root + key)
            if len(self._puts) > _KEPT:
                self._puts.popitem(last=False)

    def ending(self, root: bytes, key: bytes) -> Put | None:
        """Where the chain is that ends with ``key``."""
        found = self._puts.get(root + key)
        return found if found is not None and found.at + KNOWN_AFTER > self._clock() else None

    def longest(self, root: bytes, keys: bytes) -> Put | None:
        """Where most of a chain is that begins with these keys."""
        if not self._puts:
            return None
        oldest = self._clock() - KNOWN_AFTER
        with self._lock:
            while self._puts and next(iter(self._puts.values())).at < oldest:
                self._puts.popitem(last=False)
            fitting = [
                put
                for name, put in self._puts.items()
                if name == root + keys[(put.blocks - 1) * KEY_BYTES : put.blocks * KEY_BYTES]
            ]
        return max(fitting, key=lambda put: put.blocks, default=None)
