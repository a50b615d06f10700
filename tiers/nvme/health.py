"""Health of the tier: what is wrong, since when, what to do. Causes come and go; the state follows from them."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

HealthState: TypeAlias = Literal["ok", "degraded", "read_only", "failed"]


class Cause(Enum):
    """What can be wrong, with the advice that goes with it."""

    DISK_FULL = "free space on the file system, or lower the NVMe capacity_bytes"
    INDEX_FULL = "free space on the file system: the index cannot record removals"
    INDEX = "the index process is being restarted; see its last words in the log"
    WRITE_IO = "look at the kernel log and the drive's health; writes are tried again from time to time"
    READ_IO = "look at the kernel log and the drive's health; blocks that cannot be read are misses"
    READ_ONLY = "the file system is read-only: remount it read-write; release the tier if it must be unmounted first"
    DISK = "nothing can be read or written: repair, unmount and mount the file system; the tier takes it up again"


_STOPS_WRITES = frozenset({Cause.INDEX_FULL, Cause.INDEX, Cause.WRITE_IO, Cause.READ_ONLY, Cause.DISK})


@dataclass(frozen=True, slots=True)
class Health:
    """``since``: seconds since the epoch when the state was entered; ``reason`` and ``advice`` are for people."""

    state: HealthState
    reason: str
    since: float
    advice: str
    causes: tuple[str, ...] = ()


class HealthKeeper:
    """Collects causes. ``changed`` is called after each change of state, without a lock held."""

    def __init__(self, changed: Callable[[Health], None] = lambda health: None) -> None:
        self._lock = threading.Lock()
        self._changed = changed
        self._causes: dict[Cause, str] = {}
        self._health = Health("ok", "", time.time(), "")
        self.writable = True  # plain attributes: read on every call
        self.readable = True

    @property
    def health(self) -> Health:
        return self._health

    def has(self, cause: Cause) -> bool:
        return cause in self._causes

    @property
    def causes(self) -> frozenset[Cause]:
        with self._lock:
            return frozenset(self._causes)

    def trouble(self, cause: Cause, reason: str) -> None:
        """Something is wrong; the first reason of a cause stays until it is cleared."""
        with self._lock:
            if cause in self._causes:
                return
            self._causes[cause] = reason
            change = self._update()
        self._tell(change)

    def clear(self, *causes: Cause) -> None:
        """These are over."""
        with self._lock:
            before = len(self._causes)
            for cause in causes:
                self._causes.pop(cause, None)
            change = self._update() if len(self._causes) != before else None
        self._tell(change)

    def io_error(self, error: OSError, write: bool) -> None:
        """Files an I/O error under its cause."""
        if error.errno == errno.ENODEV:
            return  # detached: known already
        if error.errno == errno.EROFS:
            cause = Cause.READ_ONLY
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            cause = Cause.DISK_FULL
        else:
            cause = Cause.WRITE_IO if write else Cause.READ_IO
        self.trouble(cause, str(error))

    def _update(self) -> Health | None:
        causes = sorted(self._causes, key=list(Cause).index, reverse=True)  # the worst first
        self.writable = not _STOPS_WRITES & self._causes.keys()
        self.readable = Cause.DISK not in self._causes
        state = self._state()
        reason = "; ".join(self._causes[cause] for cause in causes)
        old = self._health
        since = old.since if old.state == state else time.time()
        self._health = Health(state, reason, since, causes[0].value if causes else "", tuple(c.name for c in causes))
        return self._health if self._health != old else None

    def _state(self) -> HealthState:
        if Cause.DISK in self._causes:
            return "failed"
        if Cause.READ_ONLY in self._causes:
            return "read_only"
        return "degraded" if self._causes else "ok"

    def _tell(self, change: Health | None) -> None:
        if change is not None:
            self._changed(change)
