"""Whole chains of what a store holds, for those who copy them elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import NO_PIN, READY
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.runs import tiers_of
from kvstore.tiers.state import PIECE, State

_SCAN = 32_768  # rows of a column looked at under the lock at once
_SWEEP = 4096  # the same, where more is copied
_LATELY = 60.0  # seconds after an eviction in which more is expected
_NO_KEYS = np.empty((0, 2), np.uint64)


@dataclass(frozen=True, slots=True)
class Leaf:
    """The last block of a chain. ``handle`` and ``root`` name its namespace, ``blocks`` counts the chain's blocks."""

    handle: int
    root: bytes
    key: bytes
    blocks: int


class Chains:
    """Takes the lock itself, for a piece at a time."""

    def __init__(self, state: State) -> None:
        self._state = state

    def ancestry(self, handle: int, key: bytes) -> KeyArray:
        """Keys of the chain from block 0 to the one of ``key``, shape (n, 2); none when it is not READY here. Raises
        UnknownNamespace."""
        namespace = self._state.namespaces.by_handle(handle)
        found: list[tuple[int, int]] = []
        row = leaf = -1
        while True:
            with self._state.lock:
                here = self._ready(namespace, key)
                if here < 0 or (found and here != leaf):
                    return _NO_KEYS
                row, leaf = (row, leaf) if found else (here, here)
                row = self._climb(row, found)
                if row < 0:
                    whole = len(found) == self._state.index.block_at[leaf] + 1
                    break
        return np.array(found[::-1], np.uint64) if whole else _NO_KEYS

    def _climb(self, row: int, found: list[tuple[int, int]]) -> int:
        """Notes the keys of a row and of those above it; the row to go on with, -1: block 0 is among them."""
        index = self._state.index
        for _ in range(PIECE):
            if row < 0:
                break
            found.append((index.key_low_at[row], index.key_high_at[row]))
            row = index.parent_at[row]
        return row

    def _ready(self, namespace: Namespace, key: bytes) -> int:
        """While a block is here, those above it are."""
        row = self._state.index.find_one(namespace.id, key)
        ready = row >= 0 and not namespace.void and self._state.index.state_at[row] == READY
        return row if ready else -1

    def present(self, handle: int, keys: KeyArray) -> int:
        """How many leading blocks of a chain can be read here: no use of them. Raises UnknownNamespace."""
        namespace = self._state.namespaces.by_handle(handle)
        need, index, have = np.uint64(namespace.needed), self._state.index, 0
        for start in range(0, len(keys), PIECE):
            piece = keys[start : start + PIECE]
            with self._state.lock:
                rows = index.find(namespace.id, piece)
                here = (rows >= 0) & (index.state[rows] == READY) & (index.ready[rows] & need == need)
                here &= not namespace.void
            gap = np.flatnonzero(~here)
            if len(gap):
                return have + int(gap[0])
            have += len(piece)
        return have

    def unused(self, handle: int, key: bytes) -> float:
        """Seconds since a block was used last; infinite when it is not here. Raises UnknownNamespace."""
        namespace = self._state.namespaces.by_handle(handle)
        with self._state.lock:
            row = self._ready(namespace, key)
            return self._state.policy.unused(row, time.monotonic()) if row >= 0 else math.inf

    def eviction_age(self) -> float:
        """Seconds that the block which goes next was not used, by those that went last; 0: nothing has to go."""
        capacity, free = self._state.journal.room()
        victims = self._state.victims
        full = free <= capacity * (1 - self._state.config.low_watermark) or time.monotonic() - victims.last < _LATELY
        return victims.seconds if full else 0.0

    def refuse(self, yes: bool) -> None:
        """From now on new blocks have no place here (NO_SPACE), or have one again."""
        with self._state.lock:
            self._state.draining = yes

    def drop(self, handle: int, keys: KeyArray) -> int:
        """Drops the end of a chain, deepest block first, up to one that others hang on, or that is leased or pinned;
        how many blocks. Raises UnknownNamespace."""
        namespace, dropped = self._state.namespaces.by_handle(handle), 0
        for stop in range(len(keys), 0, -PIECE):
            piece = keys[max(0, stop - PIECE) : stop]
            with self._state.lock:
                for row in self._state.index.find(namespace.id, piece).tolist()[::-1]:
                    if not self._droppable(row):
                        return dropped
                    self._state.drop(row, "migrated")
                    dropped += 1
        return dropped

    def _droppable(self, row: int) -> bool:
        index = self._state.index
        if row < 0 or index.state_at[row] != READY or index.children_at[row]:
            return False
        return not index.leases_at[row] and index.pins_at[row] == NO_PIN

    def ready(self) -> Iterator[tuple[bytes, KeyArray]]:
        """All blocks that can be read here, in no order: root and keys of some at a time."""
        index = self._state.index
        for start in range(0, index.rows_used, _SWEEP):
            rows = np.arange(start, min(start + _SWEEP, index.rows_used))
            with self._state.lock:
                rows = rows[tiers_of(self._state, rows) != 0]
                keys = np.stack((index.key_low[rows], index.key_high[rows]), axis=1)
                numbers = index.namespace[rows].copy()
                roots = {n: found.root for n in set(numbers.tolist()) if (found := self._state.namespaces.by_id(n))}
            for number, root in roots.items():
                yield root, keys[numbers == number]

    def leaves(self) -> Iterator[Leaf]:
        """Every chain that nothing here goes on, the one used last first. What comes meanwhile may be missed."""
        rows = self._leaf_rows()
        with self._state.lock:
            last = self._state.policy.last_use(rows)
        rows = rows[np.argsort(-last, kind="stable")]
        for start in range(0, len(rows), PIECE):
            yield from self._look(rows[start : start + PIECE])

    def _leaf_rows(self) -> IntArray:
        index, found = self._state.index, []
        for start in range(0, index.rows_used, _SCAN):
            end = min(start + _SCAN, index.rows_used)
            with self._state.lock:
                leaf = (index.state[start:end] == READY) & (index.children[start:end] == 0)
            found.append(start + np.flatnonzero(leaf))
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _look(self, rows: IntArray) -> list[Leaf]:
        index, found = self._state.index, []
        with self._state.lock:
            for row in rows.tolist():
                namespace = self._state.namespaces.by_id(index.namespace_at[row])
                if namespace is None or namespace.void or index.state_at[row] != READY or index.children_at[row]:
                    continue
                found.append(Leaf(namespace.handle, namespace.root, index.key(row), index.block_at[row] + 1))
        return found
