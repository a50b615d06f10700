"""What a node itself is like, as metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import kvstore
from kvstore.node.metrics import catalog, catalog_node
from kvstore.node.metrics.counting import NodeMetrics
from kvstore.node.metrics.family import sampled, single

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kvstore.node.report import Facts


def node_metrics(
    metrics: NodeMetrics, facts: Facts, connections: int, watchers: int, ready: bool, draining: bool
) -> Iterator[Metric]:
    """State, age and identity."""
    yield single(catalog_node.READY, int(ready))
    yield single(catalog_node.DRAINING, int(draining))
    yield single(catalog_node.CONNECTIONS, connections)
    yield single(catalog.WATCHERS, watchers)
    yield single(catalog_node.STARTED, metrics.started)
    yield single(catalog_node.UPTIME, time.monotonic() - facts.started)
    yield single(catalog_node.RECOVERY, metrics.recovery_seconds)
    yield single(catalog_node.INSECURE, int(facts.insecure))
    yield sampled(catalog_node.INFO, {(facts.node_id.hex(), kvstore.__version__): 1})
