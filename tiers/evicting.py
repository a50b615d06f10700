"""Making room: victims the policy names, blocks somebody asks to drop, whole namespaces."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from kvstore.core.keys import KeyArray
from kvstore.tiers.index import READY
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.reclaiming import Reclaimer
from kvstore.tiers.segments import SlotClass
from kvstore.tiers.state import PIECE, State

if TYPE_CHECKING:
    from kvstore.tiers.demoting import Demoter
    from kvstore.tiers.placement import Placement

_BATCH = 16  # blocks evicted at a time under the lock
_FORGET = 1.0  # seconds that a drop waits for NVMe, before it goes on in the background
_LOOK = 0.05  # seconds between looks at what waits
_AHEAD = 0.1  # of all slots: sent off beyond the watermark while somebody waits, for slots come free with a commit


class Evictor:
    """Each method takes the lock itself, for short times."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._growth = threading.Lock()
        self.reclaimer = Reclaimer(state, self._evictable, self._let_go)
        self.demoter: Demoter | None = None  # of a store with an NVMe tier

    def make_room(self, kind: SlotClass | None, count: int, deadline: float | None = None) -> int:
        """Frees room for ``count`` slots of a class (None: for index rows). 0: nothing could go. ``deadline``: of the
        whole request (time.monotonic), which may come again; None: ``room_wait`` from now."""
        if kind is None:
            if self.demoter:
                with self._state.lock:
                    return self.demoter.make_nvme_room(min(_BATCH, count))
            return sum(self._evict_batch(min(_BATCH, count - done), None, 0) for done in range(0, count, _BATCH))
        if self.grow() or self.reclaimer.reclaim(kind, count):
            return 1
        if self._state.placement and self.demoter:
            until = time.monotonic() + self._state.config.room_wait if deadline is None else deadline
            return self._wait_for_room(self._state.placement, self.demoter, kind, count, until)
        evicted = 0
        for _ in range(-(-max(4 * count, 64) // _BATCH)):
            batch = self._evict_batch(_BATCH, kind, count)
            evicted += batch
            if not batch or self._enough(kind, count):
                break
        return evicted

    def grow(self) -> bool:
        """Backs one more segment with memory, if there is one left. Slow."""
        with self._growth:
            return self._state.dram.prefault()

    def keep_watermarks(self) -> bool:
        """One step of eviction ahead of demand. False: nothing (more) to do."""
        state = self._state
        with state.lock:
            ahead = _AHEAD if state.placement and state.placement.awaited else 0.0
            low = max(0.0, state.config.low_watermark - ahead)
            short = state.dram.shortage(state.config.high_watermark, low)
        if any(self.reclaimer.reclaim(kind) for kind, _ in short):
            return True
        if state.placement and self.demoter:
            left = [count - state.placement.leaving[kind] for kind, count in short]
            return any(self._send_off(min(count, _BATCH)) for count in left if count > 0)
        return any(self._evict_batch(min(count, _BATCH), None, count) for _, count in short)

    # --- room in a store with an NVMe tier -----------------------------------------------------------------

    def _wait_for_room(
        self, placement: Placement, demoter: Demoter, kind: SlotClass, count: int, deadline: float
    ) -> int:
        """Sends victims off and waits for those that are being written; 0: not enough room came in time."""
        state = self._state
        while True:
            with state.lock:
                missing = count - state.dram.room(kind) - placement.leaving[kind]
            sent = self._send_off(max(missing, _BATCH), kind, count) if missing > 0 else 0
            sent = sent or self._send_off_inner(demoter, kind, missing)
            with state.lock:
                if state.dram.room(kind) >= count:
                    return 1
                left = deadline - time.monotonic()
                if left <= 0:
                    return 0
                if placement.leaving[kind] > 0 or (placement.copying and not sent):
                    with placement.waiting():
                        placement.room.wait(min(_LOOK, left))
                    continue
            if not sent and not self._last_resort(demoter, kind):
                return 0 if demoter.nvme_full else int(self._enough(kind, 1))

    def _send_off(self, most: int, kind: SlotClass | None = None, count: int = 0) -> int:
        """Sends up to ``most`` victims off; fewer when nothing can go, or when enough of the class will be free."""
        state, demoter, placement, sent = self._state, self.demoter, self._state.placement, 0
        assert demoter is not None
        assert placement is not None
        while sent < most:
            with state.lock:
                for _ in range(min(_BATCH, most - sent)):
                    row = state.policy.victim(demoter.evictable)
                    if row is None:
                        return sent
                    demoter.send_off(row)
                    sent += 1
                    if kind is not None and state.dram.room(kind) + placement.leaving[kind] >= count:
                        return sent
        return sent

    def _send_off_inner(self, demoter: Demoter, kind: SlotClass, most: int) -> int:
        """Sends blocks off that others in DRAM hang on: how many."""
        if most <= 0:
            return 0
        with self._state.lock:
            return sum(demoter.send_inner(row) for row in demoter.inner_victims(kind, min(max(most, _BATCH), PIECE)))

    def _last_resort(self, demoter: Demoter, kind: SlotClass) -> int:
        """A block that cannot be written goes with its branch; else a segment of another class is emptied."""
        state = self._state
        with state.lock:
            row = state.policy.victim(demoter.evictable)  # held a moment ago, perhaps
            if row is not None:
                demoter.send_off(row)
                return 1
            row = state.policy.victim(demoter.evictable_with_branch())
        if row is not None:
            return state.drop_subtree(row, "evicted")[0]
        return int(self.reclaimer.reclaim(kind, 1))

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
        if self.demoter:
            return self.demoter.evictable(row)
        index = self._state.index
        return index.state_at[row] == READY and not index.leases_at[row]

    def _let_go(self, row: int) -> None:
        if self.demoter:
            self.demoter.send_off(row)
        else:
            self._state.drop(row, "evicted")

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
            self._state.journal.voided(namespace.root)
            if self._state.placement:
                self._state.placement.retire_namespace(namespace)
        counts = self.drop_all(namespace, "namespace")
        with self._state.lock:
            if not namespace.rows:
                self._state.finish_drop(namespace)
        self._await_forgotten(namespace)
        return counts

    def _await_forgotten(self, namespace: Namespace) -> None:
        """Waits a little for NVMe to forget a dropped namespace, so that its record is free for another."""
        placement = self._state.placement
        barrier = placement.retiring.get(namespace.id) if placement else None
        if placement and barrier:
            barrier.done.wait(_FORGET)
            with self._state.lock:
                placement.settle_drops()
