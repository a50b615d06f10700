"""Replays a trace through the index and policy code that a node runs, without the bytes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from kvstore.cli.bench.trace import BLOCK_TOKENS, Request
from kvstore.tiers.eviction import BlockTokens, EvictionPolicy
from kvstore.tiers.index import READY, BlockIndex

PolicyMaker: TypeAlias = Callable[[BlockIndex, BlockTokens], EvictionPolicy]
ATTENTION = 0.0168  # cost of a block grows by this share of the first one's with each block before it


def _cost(blocks: int) -> float:
    """FLOPs of the first ``blocks`` blocks of a prompt, in those of block 0."""
    return blocks + ATTENTION * blocks * (blocks - 1) / 2


@dataclass(slots=True)
class Hits:
    """What was asked for and what was found, over full blocks."""

    blocks: int = 0
    hit_blocks: int = 0
    tokens: int = 0
    flops: float = 0.0
    hit_flops: float = 0.0

    def count(self, request: Request, found: int) -> None:
        """A request found its first ``found`` blocks."""
        self.blocks += len(request.keys)
        self.hit_blocks += found
        self.tokens += request.tokens
        self.flops += _cost(len(request.keys))
        self.hit_flops += _cost(found)

    def metrics(self) -> dict[str, float]:
        """Shares of what was asked for: full blocks, prompt tokens, FLOPs of the full blocks."""
        return {
            "block_hit_rate": self.hit_blocks / max(self.blocks, 1),
            "token_hit_rate": self.hit_blocks * BLOCK_TOKENS / max(self.tokens, 1),
            "flops_saved": self.hit_flops / max(self.flops, 1),
        }


class Replay:
    """A cache of ``capacity`` blocks. ``pieces``: blocks a put carries, 0: all at once. ``interleave``: requests under
    way at once, their puts taking turns. Between its puts a request holds nothing: its blocks may be evicted, and then
    the rest of its chain is not stored."""

    def __init__(self, maker: PolicyMaker, capacity: int, pieces: int = 0, interleave: int = 1) -> None:
        self.index = BlockIndex(capacity)
        self.policy = maker(self.index, lambda _: BLOCK_TOKENS)
        self.capacity, self.pieces, self.interleave = capacity, pieces, interleave
        self.hits = Hits()
        self._now = 0.0

    def run(self, trace: list[Request]) -> Hits:
        """Serves the whole trace."""
        under_way: deque[Iterator[None]] = deque()
        for number, request in enumerate(trace, 1):
            self._now = request.seconds
            under_way.append(self._serve(request, number))
            next(under_way[-1], None)
            while len(under_way) >= self.interleave:
                self._step(under_way)
        while under_way:
            self._step(under_way)
        return self.hits

    @staticmethod
    def _step(under_way: deque[Iterator[None]]) -> None:
        serving = under_way.popleft()
        if next(serving, StopIteration) is None:
            under_way.append(serving)

    def _serve(self, request: Request, number: int) -> Iterator[None]:
        """Looks up, then puts piece by piece."""
        rows = self.index.find(0, request.keys)
        absent = np.flatnonzero(rows < 0)
        found = int(absent[0]) if absent.size else len(rows)
        self.policy.touched(rows[:found], number, self._now, len(rows))
        self.hits.count(request, found)
        size = self.pieces or len(rows)
        for first in range(found, len(rows), max(size, 1)):
            yield
            if not self._put(request, number, first, min(first + size, len(rows))):
                return

    def _put(self, request: Request, number: int, first: int, end: int) -> bool:
        """One put. False if its parent is gone, or there is no room."""
        parent = -1
        if first:
            parent = int(self.index.find(0, request.keys[first - 1 : first])[0])
            if parent < 0:
                return False
        rows = self.index.find(0, request.keys[first:end])
        present = int((rows >= 0).sum())  # another request was faster; what it has put is a prefix of this piece
        parent = int(rows[present - 1]) if present else parent
        keys = request.keys[first + present : end]
        if not len(keys) or not self._make_room(len(keys), parent):
            return not len(keys)
        added = self.index.insert_run(0, keys, parent, first + present)
        self.index.state[added] = READY
        self.policy.inserted(added, parent, number, 0, self._now)
        return True

    def _make_room(self, count: int, parent: int) -> bool:
        while len(self.index) + count > self.capacity:
            row = self.policy.victim(lambda row: row != parent)
            if row is None:
                return False
            self.policy.removed(row)
            self.index.remove(row)
        return True


def best_possible(trace: list[Request], capacity: int) -> Hits:
    """OPT (Belady): keeps what is asked for soonest, and of blocks asked for by the same request the shallower ones."""
    never = len(trace)
    uses = _next_uses(trace, never)
    resident: dict[int, int] = {}  # block -> next use
    order: list[tuple[int, int, int]] = []  # heap of (-next use, -depth, block)
    hits = Hits()
    for request, following in zip(trace, uses, strict=True):
        blocks = request.keys[:, 1].tolist()
        hits.count(request, next((at for at, block in enumerate(blocks) if block not in resident), len(blocks)))
        for depth, (block, use) in enumerate(zip(blocks, following, strict=True)):
            resident[block] = use
            heapq.heappush(order, (-use, -depth, block))
        while len(resident) > capacity:
            use, _, block = heapq.heappop(order)
            if resident.get(block) == -use:
                del resident[block]
    return hits


def _next_uses(trace: list[Request], never: int) -> list[list[int]]:
    """For each block of each request the number of the next request that asks for it."""
    following: dict[int, int] = {}
    uses: list[list[int]] = []
    for number in range(len(trace) - 1, -1, -1):
        blocks = trace[number].keys[:, 1].tolist()
        uses.append([following.get(block, never) for block in blocks])
        following.update(dict.fromkeys(blocks, number))
    return uses[::-1]
