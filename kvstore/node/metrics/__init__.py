"""What a node counts, and what /metrics makes of it."""

from __future__ import annotations

from kvstore.node.metrics.counting import BUCKETS, Collector, NodeMetrics, Tally, render

__all__ = ["BUCKETS", "Collector", "NodeMetrics", "Tally", "render"]
