"""Pins: blocks that are the last to go (soft), or that eviction never takes (hard), for good or for a time.

A hard pin needs those of the blocks before it, without which its block could not be found: the hard-pinned blocks of a
namespace are always whole chains from block 0, and what they keep is what is counted. Explicit requests win over pins:
a block that somebody evicts, purges or drops by name goes, and its pin with it.

A pin is noted beside the slot headers of its block and, in a store with two tiers, in NVMe's index: it survives a
restart of the node wherever the block is.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import InvalidArgument, NoSpace
from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import IntArray, column
from kvstore.tiers.index import HARD_PIN, NO_PIN, READY, SOFT_PIN
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.tier import NO_SLOT, SlotArray, TierKind
from kvstore.tiers.values import PinStat

if TYPE_CHECKING:
    from kvstore.tiers.state import State

_PIECE = 256  # keys worked on at a time under the lock
_SCAN = 65_536  # rows looked at in one step under the lock
_LATEST = 2**32 - 1  # seconds since the epoch that a header can note
_POLL = 1.0  # seconds between looks at what ends
_LIFTED = NO_PIN | 1 << 2  # in a header: what NVMe's index says of the block may be older


class Pins:
    """Methods that name keys take the lock themselves; the others are called under it."""

    def __init__(self, state: State) -> None:
        config = state.config
        self._state = state
        self.max_bytes = config.max_pinned_bytes or config.capacity_bytes // 4
        self.max_tenant_bytes = config.max_pinned_bytes_tenant or self.max_bytes
        rows = state.index.max_blocks
        self._until: npt.NDArray[np.uint32] = column(rows, np.uint32)  # seconds since the epoch, 0: for good
        self._until_at = memoryview(self._until)
        self._below: memoryview[int] = memoryview(column(rows, np.int32))  # hard-pinned children
        self._blocks = [0, 0, 0]  # by kind of pin
        self._promised = 0  # bytes of pins being set
        self._by_tenant: Counter[str] = Counter()
        self._by_namespace: Counter[int] = Counter()
        self._next_end = math.inf

    # --- pinning -------------------------------------------------------------------------------------------

    def pin(self, namespace: Namespace, keys: KeyArray, hard: bool, ttl: float = 0.0) -> int:
        """Pins those blocks of ``keys`` that are here, for ``ttl`` seconds (0: for good); how many.

        For a hard pin the keys are a chain from block 0 (or go on one that is hard-pinned). A later call changes kind
        and time. Raises InvalidArgument, and NoSpace (then no pin is set) when hard pins would take more bytes.
        """
        until, level = _until(ttl), HARD_PIN if hard else SOFT_PIN
        room = self._promise(namespace, keys) if hard else 0
        left, pinned, parent_ok = room, 0, True
        try:
            for start in range(0, len(keys), _PIECE):
                with self._state.lock:
                    rows = self._found(namespace, keys[start : start + _PIECE])
                    set_rows, left, parent_ok = self._set(namespace, rows, level, until, left, parent_ok)
                    self._note(namespace, set_rows, level, until)
                pinned += len(set_rows)
        finally:
            with self._state.lock:
                self._promised -= room
        return pinned

    def unpin(self, namespace: Namespace, keys: KeyArray) -> int:
        """Lifts the pins of blocks; how many. One that hard-pinned blocks hang on keeps its pin."""
        lifted = 0
        for stop in range(len(keys), 0, -_PIECE):
            with self._state.lock:
                rows = self._found(namespace, keys[max(0, stop - _PIECE) : stop])
                gone = [row for row in rows[rows >= 0].tolist()[::-1] if self._lift(row)]
                self._note(namespace, gone, NO_PIN, 0)
            lifted += len(gone)
        return lifted

    def _found(self, namespace: Namespace, keys: KeyArray) -> IntArray:
        index = self._state.index
        rows = index.find(namespace.id, keys)
        return np.where((rows >= 0) & (index.state[rows] == READY), rows, -1)

    def _promise(self, namespace: Namespace, keys: KeyArray) -> int:
        """Sets aside the bytes that hard pins of these keys would add. Raises NoSpace."""
        fresh, tenant, index = 0, namespace.spec.tenant, self._state.index
        for start in range(0, len(keys), _PIECE):
            with self._state.lock:
                rows = self._found(namespace, keys[start : start + _PIECE])
                fresh += int((index.pins[rows[rows >= 0]] != HARD_PIN).sum())
        need = fresh * _size(namespace)
        with self._state.lock:
            total = self._hard_bytes + self._promised + need
            mine = self._by_tenant[tenant] + self._promised + need
            if need and (total > self.max_bytes or mine > self.max_tenant_bytes):
                self._state.counters["pins_refused"] += 1
                raise NoSpace(_over(total, self.max_bytes, mine, self.max_tenant_bytes, tenant), need=need)
            self._promised += need
        return need

    @property
    def _hard_bytes(self) -> int:
        return sum(self._by_namespace.values())

    def _set(
        self, namespace: Namespace, rows: IntArray, level: int, until: int, left: int, chain: bool
    ) -> tuple[list[int], int, bool]:
        """Pins rows (-1: absent) one after the other: those that are pinned now, bytes left, and whether the chain of a
        hard pin goes on."""
        pins, size, done = self._state.index.pins_at, _size(namespace), []
        for row in rows.tolist():
            if level == HARD_PIN:
                chain = chain and row >= 0 and self._follows(row) and (pins[row] == HARD_PIN or left >= size)
                if not chain:
                    break
                left -= size if pins[row] != HARD_PIN else 0
            if row >= 0 and self._put(row, namespace, level, until):
                done.append(row)
        return done, left, chain

    def _follows(self, row: int) -> bool:
        parent = self._state.index.parent_at[row]
        return parent < 0 or self._state.index.pins_at[parent] == HARD_PIN

    def _put(self, row: int, namespace: Namespace, level: int, until: int) -> bool:
        """Changes the pin of a row. False: it must stay hard, because hard-pinned blocks hang on it."""
        old = self._state.index.pins_at[row]
        if old == HARD_PIN and level != HARD_PIN and self._below[row]:
            return False
        self._count(row, namespace, old, -1)
        self._count(row, namespace, level, 1)
        self._state.index.pins_at[row], self._until_at[row] = level, until
        if level and until:
            self._next_end = min(self._next_end, until)
        return True

    def _count(self, row: int, namespace: Namespace, level: int, by: int) -> None:
        self._blocks[level] += by
        if level == HARD_PIN:
            size, parent = by * _size(namespace), self._state.index.parent_at[row]
            self._by_tenant[namespace.spec.tenant] += size
            self._by_namespace[namespace.id] += size
            if parent >= 0:
                self._below[parent] += by

    def _lift(self, row: int) -> bool:
        state = self._state
        if not state.index.pins_at[row] or not self._put(row, state.namespace_of(row), NO_PIN, 0):
            return False
        state.policy.unpinned(row)
        return True

    def dropped(self, row: int) -> None:
        """A pinned block goes, because somebody named it or it failed its checks."""
        namespace = self._state.namespace_of(row)
        self._put(row, namespace, NO_PIN, 0)
        if self._state.placement:
            self._state.placement.note_pins(namespace, [row], 0)

    # --- pins that end ---------------------------------------------------------------------------------------

    def expire(self) -> float:
        """Lifts the pins whose time is over; called without the lock. Seconds until the next look."""
        now = time.time()
        if now < self._next_end:
            return _POLL
        index, latest = self._state.index, math.inf
        over: list[IntArray] = []
        self._next_end = math.inf
        for start in range(0, index.rows_used, _SCAN):
            rows = start + np.flatnonzero(index.pins[start : min(start + _SCAN, index.rows_used)])
            ends = self._until[rows]
            over.append(rows[(ends > 0) & (ends <= now)])
            later = ends[ends > now]
            latest = min(latest, float(later.min())) if len(later) else latest
        self._lift_all(np.concatenate(over) if over else np.empty(0, np.int64), now)
        self._next_end = min(self._next_end, latest)
        return _POLL

    def _lift_all(self, rows: IntArray, now: float) -> None:
        """Deepest first. Those that longer pins hang on are looked at again after a while."""
        order = np.argsort(-self._state.index.block[rows].astype(np.int64), kind="stable")
        for start in range(0, len(rows), _PIECE):
            with self._state.lock:
                for row in rows[order[start : start + _PIECE]].tolist():
                    if not 0 < self._until_at[row] <= now:
                        continue
                    if self._lift(row):
                        self._state.counters["pins_expired"] += 1
                        self._note(self._state.namespace_of(row), [row], NO_PIN, 0)
                    else:
                        self._next_end = min(self._next_end, now + 10 * _POLL)

    # --- across a restart ------------------------------------------------------------------------------------

    def _note(self, namespace: Namespace, rows: list[int], level: int, until: int) -> None:
        """Beside the headers of the slots in DRAM, at once, and in NVMe's index, one commit later."""
        value, placement = level | until << 2, self._state.placement
        if rows and placement:
            placement.note_pins(namespace, rows, value)
        if rows and len(slots := self._slots(namespace, np.array(rows, np.int64))):
            self._state.dram.pin(slots, value or (_LIFTED if self._state.config.nvme_dir else 0))

    def _slots(self, namespace: Namespace, rows: IntArray) -> SlotArray:
        index, found = self._state.index, []
        for part in range(len(namespace.cuts)):
            at = index.part_rows(rows, part)
            slots = index.parts.slot[TierKind.DRAM][at[at >= 0]]
            found.append(slots[slots != NO_SLOT])
        return np.concatenate(found)

    def recover(self) -> None:
        """At the start: pins whose time is not over. Quotas were kept when they were set."""
        index, placement = self._state.index, self._state.placement
        noted = self._on_nvme() if placement else {}
        values = noted | self._in_memory()
        for row in sorted(values, key=index.block_at.__getitem__):
            level, until = values[row] & 3, values[row] >> 2
            lasting = not until or until > time.time()
            if lasting and (level == SOFT_PIN or (level == HARD_PIN and self._follows(row))):
                self._put(row, self._state.namespace_of(row), level, until)
        for row in values if placement else ():
            now = index.pins_at[row] | self._until_at[row] << 2
            if now != noted.get(row, 0):
                self._note(self._state.namespace_of(row), [row], index.pins_at[row], self._until_at[row])

    def _in_memory(self) -> dict[int, int]:
        """What slot headers say, by row."""
        state, index, parts, found = self._state, self._state.index, self._state.index.parts, dict[int, int]()
        for start in range(0, index.rows_used, _SCAN):
            rows = start + np.flatnonzero(index.state[start : min(start + _SCAN, index.rows_used)] == READY)
            at = index.first_part[rows].astype(np.int64)
            while len(rows := rows[at >= 0]):
                at = at[at >= 0]
                slots = parts.slot[TierKind.DRAM][at]
                there = slots != NO_SLOT
                here = rows[there]
                found.update((int(here[n]), value) for n, value in state.dram.pins(slots[there]))
                at = parts.next[at].astype(np.int64)
        return found

    def _on_nvme(self) -> dict[int, int]:
        """What NVMe's index says, by row. What it says of blocks that are not here is forgotten."""
        state, placement, found = self._state, self._state.placement, dict[int, int]()
        assert placement
        ids = {number: namespace for namespace, number in placement.numbers.items()}
        for (number, key), value in placement.nvme.pins.found.items():
            row = state.index.find_one(ids[number], key) if number in ids else -1
            if row >= 0 and state.index.state_at[row] == READY:
                found[row] = value
            else:
                placement.nvme.pins.set(number, [key], 0)
        placement.nvme.pins.found.clear()
        return found

    # --- numbers ---------------------------------------------------------------------------------------------

    def bytes_of(self, namespace: Namespace) -> int:
        """Bytes of hard-pinned blocks of a namespace."""
        return self._by_namespace[namespace.id]

    def stat(self) -> PinStat:
        """Numbers of now."""
        return PinStat(
            self._blocks[SOFT_PIN], self._blocks[HARD_PIN], self._hard_bytes, self.max_bytes, self.max_tenant_bytes
        )


def _size(namespace: Namespace) -> int:
    """Bytes of a whole block."""
    return sum(cut.length for cut in namespace.cuts)


def _until(ttl: float) -> int:
    if not 0 <= ttl < math.inf:
        raise InvalidArgument(f"a pin's time is {ttl} s; it must be 0 (for good) or more", field="ttl_seconds")
    return min(_LATEST, math.ceil(time.time() + ttl)) if ttl else 0


def _over(total: int, most: int, mine: int, most_of_tenant: int, tenant: str) -> str:
    if total > most:
        return (
            f"hard pins would take {total} bytes of this node, max_pinned_bytes is {most}; unpin others, raise it, or "
            "pin softly"
        )
    return (
        f"hard pins of tenant {tenant!r} would take {mine} bytes, max_pinned_bytes_tenant is {most_of_tenant}; unpin "
        "others, raise it, or pin softly"
    )
