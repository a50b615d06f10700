"""What a run came to, in numbers."""

from __future__ import annotations

from collections import Counter

from tests.history.checker import promised
from tests.history.nodes import NetNode
from tests.history.record import PUT, READS
from tests.history.run import Run
from tests.history.world import Block


def hit_rate(run: Run, since: float) -> float:
    """Of the load's reads: how much came of what had been acknowledged by then."""
    history = run.history()
    promises, found, owed = promised(history.ops), 0, 0
    for op in history.ops:
        if op.kind in READS and op.start >= since and op.end is not None and not op.must:
            given = [one.blocks for one in promises[op.tenant, op.chain] if one.given <= op.start]
            owed += max(given, default=0)
            found += min(op.found, max(given, default=0))
    return found / max(1, owed)


def share(run: Run, one: NetNode, since: float) -> float:
    """Of the copies of blocks that were first put from then on: how many are on a node."""
    ops = run.history().ops
    old = {
        (op.tenant, block)
        for op in ops
        if op.kind == PUT and op.start < since
        for block in run.world.blocks(op.chain)[op.first : op.blocks]
    }
    put = [promise for found in promised(ops).values() for promise in found if promise.since >= since]
    counts: Counter[int] = Counter()
    seen: set[tuple[int, str, Block]] = set()
    for holding in run.holdings(put):
        new = {(holding.node, holding.tenant, block) for block in run.world.blocks(holding.chain)[: holding.blocks]}
        new = {where for where in new - seen if where[1:] not in old}
        counts[holding.node] += len(new)
        seen |= new
    return counts[one.number] / max(1, counts.total())
