"""What to fetch from whom: pure decisions on who holds what."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.cluster.holder_sets import nodes_of
from kvstore.cluster.prefix_index import Span


def reach(spans: Sequence[Span], have: int, usable: int) -> int:
    """How many leading blocks a node that has ``have`` of them can come to. ``usable``: mask of nodes to fetch from."""
    for span in spans:
        if span.end > have:
            if not span.nodes & usable or span.first > have:
                break
            have = span.end
    return have


def ranked(spans: Sequence[Span], first: int, end: int, usable: int, turn: int) -> list[int]:
    """The nodes to ask for blocks ``first`` to ``end``, best first: those with all of them in memory, those with all of
    them, those with some. Within each kind ``turn`` says who is first, so that batches spread over the holders."""
    nodes = memory = usable
    some = 0
    for span in spans:
        if span.first < end and span.end > first:
            nodes &= span.nodes
            memory &= span.memory
            some |= span.nodes & usable
    found: list[int] = []
    for mask in (memory, nodes & ~memory, some & ~nodes):
        kind = nodes_of(mask)
        at = turn % len(kind) if kind else 0
        found += kind[at:] + kind[:at]
    return found
