"""Namespaces that nobody uses any more give way by themselves, after a model upgrade say: their blocks go first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np

from kvstore.tiers.columns import IntArray
from kvstore.tiers.eviction.policy import Evictable, EvictionPolicy, Seconds
from kvstore.tiers.index import NO_PIN, READY, BlockIndex
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.residence import TierRows

_SCAN = 65_536  # rows looked at in one call
_LOOK = 1.0  # seconds between looks at which namespaces are idle


class _IdleLeaves:
    """Unpinned leaves of idle namespaces in one tier, the longest unused namespace first."""

    def __init__(self, index: BlockIndex, tier: TierRows, idle: Callable[[], list[Namespace]]) -> None:
        self._index, self._tier, self._idle = index, tier, idle
        self._left: list[Namespace] = []
        self._found: deque[int] = deque()
        self._above = -1  # parent of the last one given: a leaf now, maybe
        self._cursor = 0
        self._looked = -_LOOK

    def next(self, evictable: Evictable) -> int | None:
        """The next that may go, or None: there is none, as far as one call can see."""
        self._look()
        while self._left:
            row = self._candidate(self._left[0].id)
            if row is None:
                return None
            if self._is_leaf(row) and evictable(row):
                self._above = self._index.parent_at[row]
                return row
        return None

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            self._looked = now
            self._left = self._idle()
            self._found.clear()
            self._above, self._cursor = -1, 0

    def _candidate(self, number: int) -> int | None:
        if self._above >= 0:
            row, self._above = self._above, -1
            return row
        if self._found:
            return self._found.popleft()
        if self._cursor >= self._index.rows_used:  # seen all of it
            self._left.pop(0)
            self._cursor = 0
            return None
        self._scan(number)
        return self._found.popleft() if self._found else None

    def _scan(self, number: int) -> None:
        index, stop = self._index, min(self._cursor + _SCAN, self._index.rows_used)
        part = slice(self._cursor, stop)
        fits = (index.namespace[part] == number) & (index.state[part] == READY) & (self._tier.children[part] == 0)
        rows = self._cursor + np.flatnonzero(fits & (index.leases[part] == 0) & (index.pins[part] == NO_PIN))
        self._found.extend(self._tier.among(rows).tolist())
        self._cursor = stop

    def _is_leaf(self, row: int) -> bool:
        index = self._index
        mine = any(one.id == index.namespace_at[row] for one in self._left[:1])
        return mine and self._tier.has(row) and not self._tier.children_at[row] and index.pins_at[row] == NO_PIN


class IdleFirst(EvictionPolicy):
    """Another policy, before which blocks of namespaces unused for ``seconds`` go (0: they do not)."""

    name: ClassVar[str] = "idle first"

    def __init__(self, policy: EvictionPolicy, namespaces: Iterable[Namespace], seconds: float) -> None:
        self.policy = policy
        self.index, self.tiers, self.features = policy.index, policy.tiers, policy.features
        self._namespaces, self._seconds = namespaces, seconds
        self._leaves = [_IdleLeaves(policy.index, tier, self.idle) for tier in policy.tiers]

    def idle(self) -> list[Namespace]:
        """Namespaces with blocks that nobody used for long, the longest first."""
        before = time.time() - self._seconds
        return sorted((one for one in self._namespaces if one.rows and one.used < before), key=lambda one: one.used)

    def victim(self, evictable: Evictable, tier: int = 0) -> int | None:
        found = self._leaves[tier].next(evictable) if self._seconds else None
        return self.policy.victim(evictable, tier) if found is None else found

    def inserted(self, rows: IntArray, parent_row: int, request: int, appended_tokens: int, now: float) -> None:
        self.policy.inserted(rows, parent_row, request, appended_tokens, now)

    def restored(self, rows: IntArray, ages: Seconds, now: float) -> None:
        self.policy.restored(rows, ages, now)

    def touched(self, path: IntArray, request: int, now: float, chain_blocks: int) -> None:
        self.policy.touched(path, request, now, chain_blocks)

    def removed(self, row: int) -> None:
        self.policy.removed(row)

    def entered(self, rows: IntArray, tier: int) -> None:
        self.policy.entered(rows, tier)

    def left(self, row: int, tier: int) -> None:
        self.policy.left(row, tier)

    def last_use(self, rows: IntArray, tier: int = 0) -> Seconds:
        return self.policy.last_use(rows, tier)

    def unused(self, row: int, now: float) -> float:
        return self.policy.unused(row, now)

    def worth(self, rows: IntArray) -> Seconds:
        return self.policy.worth(rows)

    def unpinned(self, row: int) -> None:
        self.policy.unpinned(row)

    def score(self, row: int) -> float:
        return self.policy.score(row)

    @property
    def nbytes(self) -> int:
        return self.policy.nbytes
