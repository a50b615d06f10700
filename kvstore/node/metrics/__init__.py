"""What a node counts, and what /metrics makes of it.

``catalog`` and ``catalog_node`` say which metrics there are, ``counting`` counts on the hot path, ``scrape`` makes the
page. Who has further numbers declares their families in a catalog and registers a source with ``NodeMetrics``.
"""

from __future__ import annotations

from kvstore.node.metrics.catalog_node import BUCKETS, DRAM, NONE, NVME, REMOTE
from kvstore.node.metrics.counting import NodeMetrics, Tally, source_of
from kvstore.node.metrics.node import node_metrics
from kvstore.node.metrics.scrape import Collector, render
from kvstore.node.metrics.store import store_metrics

__all__ = [
    "BUCKETS",
    "DRAM",
    "NONE",
    "NVME",
    "REMOTE",
    "Collector",
    "NodeMetrics",
    "Tally",
    "node_metrics",
    "render",
    "source_of",
    "store_metrics",
]
