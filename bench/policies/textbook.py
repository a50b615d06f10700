"""FIFO, LFU, LFUDA, ARC, S3-FIFO, SIEVE, 2Q and LRU-2 over blocks.

Each takes references one by one (``refer``) and holds at most ``capacity`` blocks (``in``). A request refers to its
blocks deepest first; what it finds are its leading blocks, as an engine needs them.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict, deque

from kvstore.cli.bench.replay import Hits
from kvstore.cli.bench.trace import Request


class Cache(ABC):
    """A cache of ``capacity`` blocks."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def __contains__(self, block: object) -> bool: ...

    @abstractmethod
    def refer(self, block: int) -> None:
        """Somebody asks for ``block``: it is taken in if it is not there."""


def replay(kind: type[Cache], trace: list[Request], capacity: int) -> Hits:
    """Serves a whole trace."""
    cache, hits = kind(capacity), Hits()
    for request in trace:
        blocks = request.keys[:, 1].tolist()
        hits.count(request, next((at for at, block in enumerate(blocks) if block not in cache), len(blocks)))
        for block in reversed(blocks):
            cache.refer(block)
    return hits


class Fifo(Cache):
    """First in, first out."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: object) -> bool:
        return block in self._blocks

    def refer(self, block: int) -> None:
        if block not in self._blocks:
            if len(self._blocks) >= self.capacity:
                self._blocks.popitem(last=False)
            self._blocks[block] = None


class Lfu(Cache):
    """Least frequently used, ties by age; counts end with the block's stay."""

    aging = False

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._value: dict[int, tuple[float, int]] = {}  # block -> (value, time), the heap holds stale ones too
        self._heap: list[tuple[float, int, int]] = []
        self._floor, self._clock = 0.0, 0

    def __contains__(self, block: object) -> bool:
        return block in self._value

    def refer(self, block: int) -> None:
        self._clock += 1
        if block in self._value:
            value = self._value[block][0] + 1
        else:
            if len(self._value) >= self.capacity:
                self._evict()
            value = self._floor + 1
        self._value[block] = (value, self._clock)
        heapq.heappush(self._heap, (value, self._clock, block))

    def _evict(self) -> None:
        while True:
            value, time, block = heapq.heappop(self._heap)
            if self._value.get(block) == (value, time):
                del self._value[block]
                self._floor = value if self.aging else 0.0
                return


class Lfuda(Lfu):
    """LFU with dynamic aging: a newcomer starts at the value of the last block evicted."""

    aging = True

    def refer(self, block: int) -> None:
        if block in self._value:  # aging: hits count from the floor as well
            count = self._count[block] = self._count.get(block, 1) + 1
            self._clock += 1
            self._value[block] = (self._floor + count, self._clock)
            heapq.heappush(self._heap, (self._floor + count, self._clock, block))
        else:
            self._count[block] = 1
            super().refer(block)

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._count: dict[int, int] = {}


class Arc(Cache):
    """Adaptive replacement cache (Megiddo and Modha, 2003)."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._once: OrderedDict[int, None] = OrderedDict()
        self._often: OrderedDict[int, None] = OrderedDict()
        self._once_gone: OrderedDict[int, None] = OrderedDict()
        self._often_gone: OrderedDict[int, None] = OrderedDict()
        self._target = 0.0  # for the size of _once

    def __contains__(self, block: object) -> bool:
        return block in self._once or block in self._often

    def refer(self, block: int) -> None:
        if block in self._once or block in self._often:
            self._once.pop(block, None)
            self._often.pop(block, None)
        elif block in self._once_gone:
            self._target = min(self.capacity, self._target + max(len(self._often_gone) / len(self._once_gone), 1))
            self._replace(in_often_gone=False)
            del self._once_gone[block]
        elif block in self._often_gone:
            self._target = max(0.0, self._target - max(len(self._once_gone) / len(self._often_gone), 1))
            self._replace(in_often_gone=True)
            del self._often_gone[block]
        else:
            self._make_room()
            self._once[block] = None
            return
        self._often[block] = None

    def _make_room(self) -> None:
        first = len(self._once) + len(self._once_gone)
        everything = first + len(self._often) + len(self._often_gone)
        if first == self.capacity:
            if len(self._once) < self.capacity:
                self._once_gone.popitem(last=False)
                self._replace(in_often_gone=False)
            else:
                self._once.popitem(last=False)
        elif everything >= self.capacity:
            if everything == 2 * self.capacity:
                self._often_gone.popitem(last=False)
            self._replace(in_often_gone=False)

    def _replace(self, *, in_often_gone: bool) -> None:
        size = len(self._once)
        if size and (size > self._target or (in_often_gone and size == int(self._target))):
            self._once_gone[self._once.popitem(last=False)[0]] = None
        elif self._often:
            self._often_gone[self._often.popitem(last=False)[0]] = None


class S3Fifo(Cache):
    """S3-FIFO (Yang and others, 2023): a small queue of a tenth, a main one, a ghost."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._ghost: OrderedDict[int, None] = OrderedDict()
        self._hits: dict[int, int] = {}

    def __contains__(self, block: object) -> bool:
        return block in self._hits

    def refer(self, block: int) -> None:
        if block in self._hits:
            self._hits[block] = min(self._hits[block] + 1, 3)
            return
        while len(self._hits) >= self.capacity:
            if len(self._small) > self.capacity // 10 or not self._main:
                self._evict_small()
            else:
                self._evict_main()
        (self._main if block in self._ghost else self._small).append(block)
        self._ghost.pop(block, None)
        self._hits[block] = 0

    def _evict_small(self) -> None:
        block = self._small.popleft()
        if self._hits[block] > 1:
            self._main.append(block)
            self._hits[block] = 0
            return
        del self._hits[block]
        self._ghost[block] = None
        if len(self._ghost) > self.capacity:
            self._ghost.popitem(last=False)

    def _evict_main(self) -> None:
        block = self._main.popleft()
        if self._hits[block]:
            self._hits[block] -= 1
            self._main.append(block)
        else:
            del self._hits[block]


class Sieve(Cache):
    """SIEVE (Zhang and others, 2024): one queue, a hand that moves from old to new and spares the visited."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._visited: dict[int, bool] = {}
        self._newer: dict[int, int | None] = {}
        self._older: dict[int, int | None] = {}
        self._newest: int | None = None
        self._oldest: int | None = None
        self._hand: int | None = None

    def __contains__(self, block: object) -> bool:
        return block in self._visited

    def refer(self, block: int) -> None:
        if block in self._visited:
            self._visited[block] = True
            return
        if len(self._visited) >= self.capacity:
            self._evict()
        self._visited[block] = False
        self._newer[block], self._older[block] = None, self._newest
        if self._newest is not None:
            self._newer[self._newest] = block
        else:
            self._oldest = block
        self._newest = block

    def _evict(self) -> None:
        at = self._oldest if self._hand is None else self._hand
        while at is not None and self._visited[at]:
            self._visited[at] = False
            following = self._newer[at]
            at = self._oldest if following is None else following
        assert at is not None
        newer, older = self._newer.pop(at), self._older.pop(at)
        self._hand = newer
        if newer is None:
            self._newest = older
        else:
            self._older[newer] = older
        if older is None:
            self._oldest = newer
        else:
            self._newer[older] = newer
        del self._visited[at]


class TwoQ(Cache):
    """2Q (Johnson and Shasha, 1994): a quarter for newcomers, a ghost of half, the rest LRU."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._fresh: OrderedDict[int, None] = OrderedDict()
        self._ghost: OrderedDict[int, None] = OrderedDict()
        self._main: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: object) -> bool:
        return block in self._fresh or block in self._main

    def refer(self, block: int) -> None:
        if block in self._main:
            self._main.move_to_end(block)
        elif block not in self._fresh:
            if len(self._fresh) + len(self._main) >= self.capacity:
                self._evict()
            if block in self._ghost:
                del self._ghost[block]
                self._main[block] = None
            else:
                self._fresh[block] = None

    def _evict(self) -> None:
        if len(self._fresh) > self.capacity // 4 or not self._main:
            self._ghost[self._fresh.popitem(last=False)[0]] = None
            if len(self._ghost) > self.capacity // 2:
                self._ghost.popitem(last=False)
        else:
            self._main.popitem(last=False)


class Lru2(Cache):
    """LRU-2 (O'Neil and others, 1993): the block whose last but one reference is oldest goes."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._times: dict[int, tuple[int, int]] = {}  # block -> (last but one, last); 0: never
        self._last: OrderedDict[int, int] = OrderedDict()  # of evicted blocks
        self._heap: list[tuple[int, int, int]] = []
        self._clock = 0

    def __contains__(self, block: object) -> bool:
        return block in self._times

    def refer(self, block: int) -> None:
        self._clock += 1
        if block not in self._times and len(self._times) >= self.capacity:
            self._evict()
        before = self._times[block][1] if block in self._times else self._last.pop(block, 0)
        self._times[block] = (before, self._clock)
        heapq.heappush(self._heap, (before, self._clock, block))

    def _evict(self) -> None:
        while True:
            before, last, block = heapq.heappop(self._heap)
            if self._times.get(block) == (before, last):
                del self._times[block]
                self._last[block] = last
                if len(self._last) > self.capacity:
                    self._last.popitem(last=False)
                return


CACHES: dict[str, type[Cache]] = {
    "fifo": Fifo, "lfu": Lfu, "lfuda": Lfuda, "arc": Arc, "s3fifo": S3Fifo, "sieve": Sieve, "2q": TwoQ, "lru2": Lru2,
}  # fmt: skip
