"""The /metrics page: what was counted, what the store says of itself, and what others add."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from kvstore.node.metrics import catalog_node
from kvstore.node.metrics.counting import NodeMetrics
from kvstore.node.metrics.family import Family, Histogram, Labels, distributed, sampled

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Collector:
    """Feeds prometheus-client at scrape time. ``further`` gives metrics of the store and servers."""

    def __init__(self, metrics: NodeMetrics, further: Callable[[], Iterable[Metric]]) -> None:
        self._metrics = metrics
        self._further = further

    def collect(self) -> Iterator[Metric]:
        yield from _traffic(self._metrics)
        yield from _rare(self._metrics)
        yield from self._further()
        for source in self._metrics.sources():
            yield from source()


def _traffic(metrics: NodeMetrics) -> Iterator[Metric]:
    received: dict[Labels, float] = defaultdict(float)
    sent: dict[Labels, float] = defaultdict(float)
    seconds: dict[Labels, Histogram] = {}
    sizes: dict[Labels, Histogram] = {}
    for transport, tally in sorted(metrics.totals().items()):
        for op, tier, row in tally.rows():
            received[op, transport] += row.bytes_in
            sent[op, transport] += row.bytes_out
            seconds[op, transport, tier] = row.latency()
            if any(row.sizes):
                sizes[op, transport, tier] = row.moved()
    yield sampled(catalog_node.RECEIVED, received)
    yield sampled(catalog_node.SENT, sent)
    yield distributed(catalog_node.REQUEST_SECONDS, seconds)
    yield distributed(catalog_node.REQUEST_BYTES, sizes)
    yield distributed(catalog_node.CONTROL_SECONDS, metrics.control_seconds())


_RARE: dict[str, Family] = {
    "error": catalog_node.ERRORS,
    "busy": catalog_node.BUSY,
    "damaged": catalog_node.DAMAGED,
    "connection": catalog_node.ACCEPTED,
    "refused": catalog_node.REFUSED,
    "cut": catalog_node.CUT,
    "control": catalog_node.CONTROL_CALLS,
}


def _rare(metrics: NodeMetrics) -> Iterator[Metric]:
    counts: dict[str, dict[Labels, float]] = {what: {} for what in _RARE}
    for (what, label), count in sorted(metrics.rare().items()):
        if what in counts:
            counts[what][(label,)] = count
    for what, family in _RARE.items():
        yield sampled(family, counts[what])


def render(collector: Collector) -> tuple[bytes, str]:
    """The /metrics page and its content type."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST
