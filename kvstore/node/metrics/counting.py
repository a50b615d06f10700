"""Counting on the hot path.

Each connection counts into numbers of its own, so nothing is locked and no increment is lost; a scrape adds them up.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kvstore.core.errors import Busy
from kvstore.node.metrics.catalog_node import BUCKETS, DRAM, NONE, NVME, REMOTE, SIZES, TIERS
from kvstore.node.metrics.family import Histogram
from kvstore.tiers.values import Acquired
from kvstore.transport.frame import Op

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_TIERS = len(TIERS)
_ROWS = (max(Op) + 1) * _TIERS


class Row:
    """Numbers of one op whose blocks come from one tier."""

    __slots__ = ("bytes_in", "bytes_out", "seconds", "sizes", "times")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.seconds = 0.0
        self.times = [0] * (len(BUCKETS) + 1)
        self.sizes = [0] * (len(SIZES) + 1)

    def add(self, other: Row) -> None:
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.seconds += other.seconds
        self.times = [sum(pair) for pair in zip(self.times, other.times, strict=True)]
        self.sizes = [sum(pair) for pair in zip(self.sizes, other.sizes, strict=True)]

    def latency(self) -> Histogram:
        return Histogram(BUCKETS, list(self.times), self.seconds)

    def moved(self) -> Histogram:
        return Histogram(SIZES, list(self.sizes), self.bytes_in + self.bytes_out)


class Tally:
    """Numbers of one connection. Written by one thread, read by any. ``transport`` is said again once it is known how
    bytes move."""

    __slots__ = ("_rows", "transport")

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self._rows: list[Row | None] = [None] * _ROWS

    def request(self, op: int, seconds: float, bytes_in: int, bytes_out: int, tier: int = NONE) -> None:
        """Counts one request: bytes of blocks, the slowest tier they came from, and the time from its first byte to the
        end of its reply."""
        at = op * _TIERS + tier
        row = self._rows[at] or self._row(at)
        row.seconds += seconds
        row.times[bisect_left(BUCKETS, seconds)] += 1
        if moved := bytes_in + bytes_out:
            row.bytes_in += bytes_in
            row.bytes_out += bytes_out
            row.sizes[bisect_left(SIZES, moved)] += 1

    def rows(self) -> Iterable[tuple[str, str, Row]]:
        """Those that counted anything, by names of op and tier."""
        for op in Op:
            for tier, name in enumerate(TIERS):
                row = self._rows[op * _TIERS + tier]
                if row is not None:
                    yield op.name.lower(), name, row

    def add(self, other: Tally) -> None:
        """Takes another tally's numbers in."""
        for at, row in enumerate(other._rows):
            if row is not None:
                self._row(at).add(row)

    def _row(self, at: int) -> Row:
        row = self._rows[at]
        if row is None:
            row = self._rows[at] = Row()
        return row


def source_of(found: Acquired) -> int:
    """The slowest tier that an answer came from."""
    if found.remote:
        return REMOTE
    if found.loaded:
        return NVME
    return DRAM if found.lease else NONE


class NodeMetrics:
    """All numbers of the node that the store does not count itself."""

    def __init__(self) -> None:
        self.started = time.time()
        self.recovery_seconds = 0.0
        self._opened = time.monotonic()
        self._lock = threading.Lock()
        self._live: set[Tally] = set()
        self._ended: dict[str, Tally] = {}
        self._rare: Counter[tuple[str, str]] = Counter()
        self._control: dict[str, Histogram] = {}
        self._sources: list[Callable[[], Iterable[Metric]]] = []

    # --- the hot path ---------------------------------------------------------------------------------------

    def tally(self, transport: str) -> Tally:
        """A tally for a new connection; give it to :meth:`retire` at its end."""
        tally = Tally(transport)
        with self._lock:
            self._live.add(tally)
        return tally

    def retire(self, tally: Tally) -> None:
        """Keeps the numbers of a connection that ended."""
        with self._lock:
            self._live.discard(tally)
            self._ended.setdefault(tally.transport, Tally(tally.transport)).add(tally)

    def totals(self) -> dict[str, Tally]:
        """Sums by transport."""
        sums: dict[str, Tally] = {}
        with self._lock:
            for tally in [*self._ended.values(), *self._live]:
                sums.setdefault(tally.transport, Tally(tally.transport)).add(tally)
        return sums

    # --- rare things, under a lock --------------------------------------------------------------------------

    def count(self, what: str, label: str = "", amount: int = 1) -> None:
        """Counts something rare (an error, a connection cut)."""
        with self._lock:
            self._rare[what, label] += amount

    def error(self, code: str, error: BaseException) -> None:
        """Counts a request that is answered with an error."""
        self.count("error", code)
        if isinstance(error, Busy):
            self.count("busy", error.details.get("bound", "other"))

    def control(self, method: str, seconds: float) -> None:
        """Counts a call of the control plane that has ended."""
        with self._lock:
            self._control.setdefault(method, Histogram(BUCKETS)).observe(seconds)

    def rare(self) -> dict[tuple[str, str], int]:
        """Counts of :meth:`count` so far."""
        with self._lock:
            return dict(self._rare)

    def control_seconds(self) -> dict[tuple[str, ...], Histogram]:
        """Times of :meth:`control` so far, by method."""
        with self._lock:
            copies = {method: Histogram(BUCKETS) for method in self._control}
            for method, copy in copies.items():
                copy.add(self._control[method])
        return {(method,): copy for method, copy in copies.items()}

    # --- the rest of the node -------------------------------------------------------------------------------

    def serving(self) -> None:
        """The start is over."""
        self.recovery_seconds = time.monotonic() - self._opened

    def register(self, source: Callable[[], Iterable[Metric]]) -> None:
        """A further source of metrics, asked at each scrape. Its families must be in the catalog."""
        with self._lock:
            self._sources.append(source)

    def sources(self) -> list[Callable[[], Iterable[Metric]]]:
        with self._lock:
            return list(self._sources)
