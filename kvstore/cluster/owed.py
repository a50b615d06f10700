"""Chains of which copies are owed to other nodes: bounded, one entry for a chain however often it grows. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

LINGER = 0.2  # seconds that a chain may grow before it is copied
PATIENCE = 1.0  # ... however often it grows
_FIRST_WAIT = 0.5  # seconds after an attempt that failed; doubled with each further one
TRIES = 6  # then it is left to the next scan


@dataclass(frozen=True, slots=True)
class Owed:
    """A chain, named by its last block ``key`` in a namespace of this node. ``new``: how many of its blocks are, and
    ``size`` their bytes; ``since``: when the first of them came; ``due``: when it may be copied."""

    handle: int
    key: bytes
    new: int
    size: int
    since: float
    due: float
    failed: int = 0


class OwedQueue:
    """Not thread-safe. Times are of one monotonic clock."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: OrderedDict[tuple[int, bytes], Owed] = OrderedDict()
        self.dropped = 0  # chains for which there was no room

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def blocks(self) -> int:
        """New ones of the chains that wait."""
        return sum(one.new for one in self._waiting.values())

    @property
    def size(self) -> int:
        """New bytes of the chains that wait."""
        return sum(one.size for one in self._waiting.values())

    def oldest(self, now: float) -> float:
        """Seconds that one waits the longest."""
        return max((now - one.since for one in self._waiting.values()), default=0.0)

    def add(self, handle: int, key: bytes, parent: bytes, new: int, size: int, now: float) -> bool:
        """A chain has ``new`` blocks at its end; ``parent``: its last one before. False: there is no room."""
        before = self._waiting.pop((handle, key), None) or self._waiting.pop((handle, parent), None)
        if before is None and len(self._waiting) >= self._limit:
            self.dropped += 1
            return False
        since = before.since if before else now
        due = max(now, min(now + LINGER, since + PATIENCE))
        if before:
            new, size = new + before.new, size + before.size
        self._waiting[handle, key] = Owed(handle, key, new, size, since, due)
        return True

    def take(self, now: float) -> Owed | None:
        """The next chain that is due."""
        found = next((one for one in self._waiting.values() if one.due <= now), None)
        if found is not None:
            del self._waiting[found.handle, found.key]
        return found

    def wait(self, now: float) -> float | None:
        """Seconds until one is due; None: there is none."""
        return max(0.0, min(one.due for one in self._waiting.values()) - now) if self._waiting else None

    def again(self, one: Owed, now: float) -> bool:
        """An attempt failed. False: it is given up."""
        if one.failed + 1 >= TRIES or len(self._waiting) >= self._limit or (one.handle, one.key) in self._waiting:
            return False
        wait = _FIRST_WAIT * 2**one.failed
        self._waiting[one.handle, one.key] = replace(one, due=now + wait, failed=one.failed + 1)
        return True
