"""Making room: victims the policy names, blocks somebody asks to drop, whole namespaces."""

from __future__ import annotations

import threading

import numpy as np

from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import FREE, READY
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.segments import SlotClass
from kvstore.tiers.state import PIECE, State
from kvstore.tiers.tier import NO_SLOT, TierKind

_BATCH = 16  # blocks evicted at a time under the lock
_SEGMENTS = 4  # segments tried when one must be emptied for another slot class
_SCAN = 65_536


class Evictor:
    """Each method takes the lock itself, for short times."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._growth = threading.Lock()

    def make_room(self, kind: SlotClass | None, count: int) -> int:
        """Frees room for ``count`` slots of a class (None: for index rows). 0: nothing could go."""
        if kind is None:
            return sum(self._evict_batch(min(_BATCH, count - done), None, 0) for done in range(0, count, _BATCH))
        if self.grow():
            return 1
        evicted = 0
        for _ in range(-(-max(4 * count, 64) // _BATCH)):
            batch = self._evict_batch(_BATCH, kind, count)
            evicted += batch
            if not batch or self._enough(kind, count):
                break
        if not self._enough(kind, 1):
            evicted += self._empty_a_segment(kind)
        return evicted

    def grow(self) -> bool:
        """Backs one more segment with memory, if there is one left. Slow."""
        with self._growth:
            return self._state.dram.prefault()

    def keep_watermarks(self) -> bool:
        """One step of eviction ahead of demand. False: nothing (more) to do."""
        state = self._state
        with state.lock:
            short = state.dram.shortage(state.config.high_watermark, state.config.low_watermark)
        return any(self._evict_batch(min(count, _BATCH), None, count) for _, count in short)

    # --- victims -------------------------------------------------------------------------------------------

    def _enough(self, kind: SlotClass, count: int) -> bool:
        with self._state.lock:
            return self._state.dram.room(kind) >= count

    def _evict_batch(self, most: int, kind: SlotClass | None, count: int) -> int:
        """Evicts up to ``most`` blocks; fewer when nothing can go, or when the class has ``count`` slots free."""
        state = self._state
        with state.lock:
            for done in range(most):
                row = state.policy.victim(self._evictable)
                if row is None:
                    return done
                state.drop(row, "evicted")
                if kind is not None and state.dram.room(kind) >= count:
                    return done + 1
        return most

    def _evictable(self, row: int) -> bool:
        index = self._state.index
        return index.state_at[row] == READY and not index.leases_at[row]

    # --- a segment for another slot class ------------------------------------------------------------------

    def _empty_a_segment(self, kind: SlotClass) -> int:
        """Drops what is in the emptiest segments of other classes until one is empty."""
        state = self._state
        with state.lock:
            others = [(used, at) for at, (other, _, used) in state.dram.classes().items() if other != kind]
        dropped = 0
        for _, segment in sorted(others)[:_SEGMENTS]:
            rows = self._rows_in(segment)
            with state.lock:
                if (state.index.leases[rows] > 0).any():
                    continue
                keys = [(row, state.index.namespace_at[row], state.index.key(row)) for row in rows.tolist()]
            for row, number, key in keys:
                with state.lock:
                    same = state.index.find_one(number, key) == row
                if same:
                    dropped += state.drop_subtree(row, "evicted")[0]
            if self._enough(kind, 1):
                break
        return dropped

    def _rows_in(self, segment: int) -> IntArray:
        """Rows that have a part in a segment."""
        state, found = self._state, []
        index, slot = state.index, state.index.parts.slot[TierKind.DRAM]
        for start in range(0, index.rows_used, _SCAN):
            with state.lock:
                rows = start + np.flatnonzero(index.state[start : min(start + _SCAN, index.rows_used)] != FREE)
                at = index.first_part[rows].astype(np.int64)
                while len(rows):
                    rows, at = rows[at >= 0], at[at >= 0]
                    slots = slot[at]
                    there = slots != NO_SLOT
                    found.append(rows[there][state.dram.segment_of(slots[there]) == segment])
                    at = index.parts.next[at].astype(np.int64)
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    # --- on demand -----------------------------------------------------------------------------------------

    def evict(self, namespace: Namespace, keys: KeyArray) -> tuple[int, int, int]:
        """Drops blocks and everything after them: blocks dropped, those of them still held, keys absent."""
        dropped = held = absent = 0
        for stop in range(len(keys), 0, -PIECE):
            piece = keys[max(0, stop - PIECE) : stop]
            with self._state.lock:
                rows = self._state.index.find(namespace.id, piece)
                absent += int((rows < 0).sum())
                inner = []
                for row in rows[rows >= 0].tolist()[::-1]:
                    if self._state.index.children_at[row]:
                        inner.append((row, self._state.index.key(row)))
                    else:
                        held += not self._state.drop(row, "asked")
                        dropped += 1
            for row, key in inner:
                more = self._drop_if_there(namespace, row, key, "asked")
                dropped, held = dropped + more[0], held + more[1]
        return dropped, held, absent

    def _drop_if_there(self, namespace: Namespace, row: int, key: bytes, cause: str) -> tuple[int, int]:
        with self._state.lock:
            same = self._state.index.find_one(namespace.id, key) == row
        return self._state.drop_subtree(row, cause) if same else (0, 0)

    def drop_all(self, namespace: Namespace, cause: str) -> tuple[int, int]:
        """Drops every block of a namespace: how many, and those of them still held."""
        dropped = held = 0
        while True:
            with self._state.lock:
                row = self._state.index.first_root(namespace.id)
            if row < 0:
                return dropped, held
            more = self._state.drop_subtree(row, cause)
            dropped, held = dropped + more[0], held + more[1]

    def drop_namespace(self, namespace: Namespace) -> tuple[int, int]:
        """Nobody finds the namespace any more; its record goes with its last block."""
        with self._state.lock:
            self._state.namespaces.start_drop(namespace)
        counts = self.drop_all(namespace, "namespace")
        with self._state.lock:
            if not namespace.rows:
                self._state.namespaces.finish_drop(namespace)
        return counts
