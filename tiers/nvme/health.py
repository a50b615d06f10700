"""Health of the tier: what is wrong, since when, what to do. Causes come and go; the state follows from them."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

HealthState: TypeAlias = Literal["ok", "degraded", "read_only", "failed"]


class Cause(Enum):
    """What can be wrong, with the advice that goes with it."""

    DISK_FULL = "free space on the file system, or lower nvme_capacity"
    INDEX_FULL = "free space on the file system: the index cannot record removals"
    INDEX = "the index process is being restarted; see its last words in the log"
    WRITE_IO = "look at the kernel log and the drive's health; writes are tried again from time to time"
    READ_IO = "look at the kernel log and the drive's health; blocks that cannot be read are misses"
    READ_ONLY = "the file system is read-only: remount it read-write; release the tier if it must be unmounted first"
    GONE = "put the directory back as it was, or restart the node to begin an empty tier; DRAM serves meanwhile"
    DISK = "nothing can be read or written: repair, unmount and mount the file system; the tier takes it up again"


LET_GO = frozenset({Cause.GONE, Cause.DISK})  # nothing below the directory is open
_STOPS_WRITES = LET_GO | {Cause.INDEX_FULL, Cause.INDEX, Cause.WRITE_IO, Cause.READ_ONLY}
_LINES, _PER = 6, 60.0  # lines of log in so many seconds
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """``since``: seconds since the epoch when the state was entered; ``reason`` and ``advice`` are for people."""

    state: HealthState
    reason: str
    since: float
    advice: str
    causes: tuple[str, ...] = ()


class HealthLog:
    """A line of log for each change of state; when they come too often, the one that stays is told later."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._told: HealthState = "ok"
        self._lines: deque[float] = deque(maxlen=_LINES)

    def note(self, health: Health) -> None:
        """Called after changes, and from time to time."""
        with self._lock:
            now = time.monotonic()
            busy = len(self._lines) == _LINES and now - self._lines[0] < _PER
            if health.state == self._told or busy:
                return
            self._told, before = health.state, self._told
            self._lines.append(now)
        if health.state == "ok":
            log.info("NVMe tier in %s is ok again (it was %s)", self._name, before)
        else:
            log.warning("NVMe tier in %s is %s: %s; %s", self._name, health.state, health.reason, health.advice)


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
        self.readable = not LET_GO & self._causes.keys()
        state = self._state()
        reason = "; ".join(self._causes[cause] for cause in causes)
        old = self._health
        since = old.since if old.state == state else time.time()
        self._health = Health(state, reason, since, causes[0].value if causes else "", tuple(c.name for c in causes))
        return self._health if self._health != old else None

    def _state(self) -> HealthState:
        if LET_GO & self._causes.keys():
            return "failed"
        if Cause.READ_ONLY in self._causes:
            return "read_only"
        return "degraded" if self._causes else "ok"

    def _tell(self, change: Health | None) -> None:
        if change is not None:
            self._changed(change)
