"""A borrow over transports that share no memory with the node: own copies of the blocks."""

from __future__ import annotations

import numpy as np

from kvstore.core.keys import KEY_BYTES
from kvstore.transport.base import Borrowed, Transport
from kvstore.transport.batch import GetCall


class Fetched(Borrowed):
    """Own copies, read-only: nothing of the node is held."""

    def __init__(self, transport: Transport, call: GetCall, deadline: float) -> None:
        plan = call.plan
        blocks = len(call.keys) // KEY_BYTES - call.first
        into = [np.empty(piece.length, dtype=np.uint8) for _ in range(blocks) for piece in plan.pieces]
        self.result = transport.get(call, into, deadline)
        given = max(0, self.result.blocks - call.first) * len(plan.pieces)
        self.views = [memoryview(buffer).toreadonly() for buffer in into[:given]]
        for block, at in self.result.holes:
            nth = (block - call.first) * len(plan.pieces) + at
            self.views[nth] = self.views[nth][:0]

    def give_back(self) -> None:
        self.views = []
