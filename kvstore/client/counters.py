"""What a client counts, and why things that were asked for did not come."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter

from kvstore.core import errors

LOG = logging.getLogger("kvstore.client")
_QUIET_SECONDS = 10.0

_REASONS: tuple[tuple[type[errors.KVStoreError], str], ...] = (
    (errors.DeadlineExceeded, "deadline"),
    (errors.Busy, "busy"),
    (errors.NoSpace, "no_space"),
    (errors.SessionLost, "session"),
    (errors.LeaseLost, "lease"),
    (errors.ChecksumMismatch, "checksum"),
    (errors.VersionMismatch, "version"),
    (errors.ProtocolError, "protocol"),
    (errors.InternalError, "internal"),
)


class Skipped(errors.Unavailable):
    """The node failed a moment ago and is not tried again yet."""


def reason_of(error: errors.KVStoreError) -> str:
    """The reason under which a failure is counted."""
    if isinstance(error, Skipped):
        return "backoff"
    if isinstance(error, errors.NoSpace) and error.details.get("table") == "namespaces":
        return "namespaces_full"
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "unavailable")


class Counters:
    """Named counts, safe for threads. ``last_miss`` is the reason of the latest miss, None before the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self.last_miss: str | None = None

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def lookup(self, op: str, asked: int, found: int, reason: str) -> None:
        """``found`` of ``asked`` blocks came; the others are a miss with a reason."""
        with self._lock:
            self._counts[f"{op}_blocks"] += asked
            self._counts[f"{op}_hits"] += found
            if found < asked:
                self.last_miss = reason or "absent"
                self._counts[f"{op}_misses.{self.last_miss}"] += asked - found

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


class Reporter:
    """Log lines, at most one of a kind in ten seconds; the next one says how many were left out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}

    def warn(self, kind: str, text: str) -> None:
        now = time.monotonic()
        with self._lock:
            when, dropped = self._last.get(kind, (-_QUIET_SECONDS, 0))
            if now - when < _QUIET_SECONDS:
                self._last[kind] = (when, dropped + 1)
                return
            self._last[kind] = (now, 0)
        LOG.warning("%s%s", text, f" ({dropped} more like it)" if dropped else "")
