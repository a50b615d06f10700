"""Counting on the hot path, and what /metrics makes of it.

Each connection counts into plain lists of its own, so nothing is locked and no increment is lost; a scrape adds
them up together with the store's own numbers.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from kvstore.transport.frame import Op

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Upper bounds in seconds: from a small request over a unix socket to a large batch that waits for a slow peer.
BUCKETS = (25e-6, 50e-6, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.5, 2.5, 10.0)
_SLOTS = max(Op) + 1


class Tally:
    """Numbers of one connection, indexed by op. Written by one thread, read by any."""

    __slots__ = ("bytes_in", "bytes_out", "latency", "seconds", "transport")

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.bytes_in = [0] * _SLOTS
        self.bytes_out = [0] * _SLOTS
        self.seconds = [0.0] * _SLOTS
        self.latency = [[0] * (len(BUCKETS) + 1) for _ in range(_SLOTS)]

    def request(self, op: int, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """Counts one request: payload bytes and the time from its first byte to the end of its reply."""
        self.bytes_in[op] += bytes_in
        self.bytes_out[op] += bytes_out
        self.seconds[op] += seconds
        self.latency[op][bisect_left(BUCKETS, seconds)] += 1

    def add(self, other: Tally) -> None:
        """Takes another tally's numbers in."""
        for op in range(_SLOTS):
            self.bytes_in[op] += other.bytes_in[op]
            self.bytes_out[op] += other.bytes_out[op]
            self.seconds[op] += other.seconds[op]
            for bucket, count in enumerate(other.latency[op]):
                self.latency[op][bucket] += count


class NodeMetrics:
    """All numbers of the node that the store does not count itself."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self._lock = threading.Lock()
        self._live: set[Tally] = set()
        self._ended: dict[str, Tally] = {}
        self._rare: Counter[tuple[str, str]] = Counter()

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

    def count(self, what: str, label: str = "") -> None:
        """Counts something rare (an error, a connection cut), under a lock."""
        with self._lock:
            self._rare[what, label] += 1

    def rare(self) -> dict[tuple[str, str], int]:
        """Counts of :meth:`count` so far."""
        with self._lock:
            return dict(self._rare)

    def totals(self) -> dict[str, Tally]:
        """Sums by transport."""
        with self._lock:
            sums = {name: Tally(name) for name in {*self._ended, *(tally.transport for tally in self._live)}}
            for tally in [*self._ended.values(), *self._live]:
                sums[tally.transport].add(tally)
        return sums


class Collector:
    """Feeds prometheus-client at scrape time. ``gauges`` gives further metrics of the store and servers."""

    def __init__(self, metrics: NodeMetrics, further: Callable[[], Iterable[Metric]]) -> None:
        self._metrics = metrics
        self._further = further

    def collect(self) -> Iterator[Metric]:
        yield from _traffic(self._metrics)
        yield from _rare(self._metrics)
        yield from self._further()


def _traffic(metrics: NodeMetrics) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    labels = ["op", "transport"]
    received = CounterMetricFamily("kvstore_received_bytes", "Payload bytes received.", labels=labels)
    sent = CounterMetricFamily("kvstore_sent_bytes", "Payload bytes sent.", labels=labels)
    latency = HistogramMetricFamily(
        "kvstore_request_seconds", "Time to answer a request of the data path.", labels=labels
    )
    for transport, tally in sorted(metrics.totals().items()):
        for op in Op:
            if not any(tally.latency[op]):
                continue
            label = [op.name.lower(), transport]
            received.add_metric(label, tally.bytes_in[op])
            sent.add_metric(label, tally.bytes_out[op])
            latency.add_metric(label, _cumulative(tally.latency[op]), tally.seconds[op])
    yield from (received, sent, latency)


def _cumulative(counts: list[int]) -> list[tuple[str, float]]:
    out: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
        total += count
        out.append((bound, total))
    return out


_RARE = {  # what -> (metric, help, label name)
    "error": ("kvstore_errors", "Requests answered with an error, by code.", "code"),
    "connection": ("kvstore_connections_accepted", "Connections accepted, by transport.", "transport"),
    "refused": ("kvstore_connections_refused", "Connections refused because a bound is reached.", "transport"),
    "cut": ("kvstore_connections_cut", "Connections closed by the node, by cause.", "cause"),
    "control": ("kvstore_control_calls", "Calls of the gRPC control plane, by method.", "method"),
}


def _rare(metrics: NodeMetrics) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    families = {what: CounterMetricFamily(name, text, labels=[label]) for what, (name, text, label) in _RARE.items()}
    for (what, label), count in sorted(metrics.rare().items()):
        families[what].add_metric([label], count)
    yield from families.values()


def render(collector: Collector) -> tuple[bytes, str]:
    """The /metrics page and its content type."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
    from prometheus_client.exposition import generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry), CONTENT_TYPE_LATEST
