"""Blocks that leave DRAM: who is written to NVMe first, who only loses its copy, who is dropped."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from kvstore.core.errors import Closed
from kvstore.tiers.admission import Admission
from kvstore.tiers.index import HARD_PIN, READY
from kvstore.tiers.mover import Move, Mover, Priority
from kvstore.tiers.moves import block_move
from kvstore.tiers.placement import DRAM, NVME, Placement
from kvstore.tiers.segments import SlotClass
from kvstore.tiers.state import State

_FULL = 0.5  # seconds that NVMe is taken for full after a block found no slot there


class Demoter:
    """Decides; the bytes are moved by the mover's threads. Methods are called under the lock."""

    def __init__(self, state: State, placement: Placement, admission: Admission) -> None:
        self._state = state
        self._placement = placement
        self.admission = admission
        self.rule = state.config.nvme_write_rule
        self.mover: Mover | None = None  # set once it runs
        self.joined: Callable[[int], None] = lambda row: None  # told, on any thread, when ``arrived`` is to be called
        self._kinds: dict[int, list[SlotClass]] = {}  # of the slots that victims on their way will free
        self._full_until = 0.0
        self._departing: set[int] = set()  # victims whose copies on NVMe are readable, and not durable yet

    def evictable(self, row: int) -> bool:
        """A victim that can go by itself: nobody holds it, and no block hangs on it that would go with it."""
        index = self._state.index
        if not self._free(row):
            return False
        return not index.children_at[row] or self._placement.clean(row) or self._can_take

    def inner_victims(self, kind: SlotClass, most: int) -> list[int]:
        """Blocks that others in DRAM hang on, where no leaf can go: the chain that is being read or written is longer
        than DRAM. On NVMe they lose nothing. The first blocks of chains come first, since who goes along a chain is
        past them; what was loaded and not used yet comes last."""
        state, index, placement = self._state, self._state.index, self._placement
        if not self._can_take:
            return []
        spaces = [
            one.id
            for one in state.namespaces
            if any(state.dram.slot_class(cut.length, cut.count) == kind for cut in one.cuts)
        ]
        used = slice(0, index.rows_used)
        good = (index.state[used] == READY) & (index.leases[used] == 0) & (index.pins[used] != HARD_PIN)
        rows = np.flatnonzero(good & (placement.dram[used] != 0) & np.isin(index.namespace[used], spaces))
        order = index.block[rows].astype(np.int64) + ((placement.fresh[rows] != 0).astype(np.int64) << 32)
        if len(rows) > most:  # the whole index under the lock: found in one pass, only what is taken is sorted
            first = np.argpartition(order, most)[:most]
            rows, order = rows[first], order[first]
        return [int(row) for row in rows[np.argsort(order, kind="stable")]]

    def evictable_with_branch(self) -> Callable[[int], bool]:
        """The last resort: a block that cannot be written goes with those on NVMe that hang on it. Not when NVMe is
        full of what others hang on and somebody holds one of these: that is the chain that is being written."""
        if self._can_take or not self._can_write:
            return self._free
        index, above = self._state.index, set[int]()
        for row in np.flatnonzero(index.leases[: index.rows_used]).tolist():
            while row >= 0 and row not in above:
                above.add(row)
                row = index.parent_at[row]
        return lambda row: row not in above and self._free(row)

    def _free(self, row: int) -> bool:
        return self._state.index.state_at[row] == READY and not self._state.index.leases_at[row]

    @property
    def _can_write(self) -> bool:
        return self.rule != "off" and self._placement.nvme.accepting and self.mover is not None

    @property
    def _can_take(self) -> bool:
        """As far as is known, NVMe has room for a block or can make it."""
        return self._can_write and not self.nvme_full

    @property
    def nvme_full(self) -> bool:
        """A moment ago nothing could go from NVMe."""
        return time.monotonic() < self._full_until

    def send_off(self, row: int) -> bool:
        """A victim leaves DRAM: at once (True), or when it has been written to NVMe (False)."""
        placement, counters = self._placement, self._state.counters
        if placement.clean(row):
            if not placement.safe(row) and placement.nvme.accepting:
                placement.begin(row)
                self._leaves(row)
                self._departing.add(row)
                return False
            placement.free_dram(row)
            counters["demoted_blocks_clean"] += 1
            return True
        refused = self._refusal(row)
        if not refused and self._start(row):
            return False
        counters["demotion_refused_blocks_" + (refused or "busy")] += 1
        if self._state.index.children_at[row]:
            return False  # the caller drops the branch
        self._state.drop(row, "evicted")
        return True

    def send_inner(self, row: int) -> bool:
        """A block that others in DRAM hang on leaves it. False: it cannot, now."""
        return self.send_off(row) or row in self._kinds

    def _refusal(self, row: int) -> str:
        if self.rule == "off":
            return "off"
        if not self._can_write:
            return "unavailable"
        if self._state.index.children_at[row]:  # on NVMe already, and lost without this one
            return ""
        if self.rule == "through":  # its write at commit waits still, or found no room
            return ""
        size = sum(cut.length for cut in self._state.namespace_of(row).cuts)
        return self.admission.refuses(self._state.policy.score(row), size, time.monotonic())

    def _start(self, row: int) -> bool:
        """Queues the write of a victim, which stays readable in DRAM until it is done."""
        placement, index = self._placement, self._state.index
        move = block_move(
            row, self._state.namespace_of(row), index.key(row), DRAM, NVME, Priority.DEMOTION, held=True
        )  # fmt: skip
        placement.begin(row)
        if not self._queue(move) and not self._join(row):
            placement.end(row)
            return False
        self._leaves(row)
        self.admission.wrote(move.size, time.monotonic())
        return True

    def _join(self, row: int) -> bool:
        """A victim that is about to be written for another reason waits for that."""
        namespace, key = self._state.namespace_of(row), self._state.index.key(row)
        move = block_move(row, namespace, key, DRAM, NVME, Priority.DEMOTION, keep=True)
        try:
            tickets = self.mover.request([move]) if self.mover else []
        except Closed:
            return False
        for ticket in tickets:
            ticket.on_end(lambda _: self.joined(row))
        return bool(tickets)

    def _leaves(self, row: int) -> None:
        """A held victim is on its way: out of DRAM's order, its slots there counted as leaving."""
        self._placement.leave(row, DRAM)
        self._kinds[row] = self.classes(row)
        self._placement.leaving.update(self._kinds[row])

    def _queue(self, move: Move) -> bool:
        try:
            return self.mover is not None and bool(self.mover.demote([move]))
        except Closed:
            return False

    def classes(self, row: int) -> list[SlotClass]:
        """Slot classes of a row's parts in DRAM."""
        cuts, mask = self._state.namespace_of(row).cuts, self._placement.dram_at[row]
        return [self._state.dram.slot_class(cut.length, cut.count) for part, cut in enumerate(cuts) if mask >> part & 1]

    # --- the end of a victim's way ---------------------------------------------------------------------------

    def arrived(self, row: int) -> None:
        """The move of a victim has ended: DRAM's copy goes once that on NVMe is durable. A node that is killed before
        then finds the former."""
        if self._placement.clean(row) and not self._placement.safe(row):
            self._departing.add(row)
        else:
            self._let_go(row)

    def settled(self, row: int) -> None:
        """A write of a block is durable, or has failed."""
        if row in self._departing and row not in self._placement.unsettled:
            self._departing.discard(row)
            self._let_go(row)

    def give_up(self) -> None:
        """The disk is in trouble: those that wait for it stay in DRAM."""
        while self._departing:
            row = self._departing.pop()
            if self._state.index.state_at[row] == READY:
                self._placement.enter(np.array([row]), DRAM)
            self.ended(row)

    def _let_go(self, row: int) -> None:
        """Frees the DRAM slots of a victim that nobody else holds."""
        placement, index = self._placement, self._state.index
        if index.state_at[row] == READY:
            if index.leases_at[row] == 1 and placement.clean(row):
                placement.free_dram(row)
                self._state.counters["demoted_blocks_written"] += 1
            else:
                placement.enter(np.array([row]), DRAM)
        self.ended(row)

    def ended(self, row: int) -> None:
        """A victim's way has ended, however."""
        self._placement.leaving.subtract(self._kinds.pop(row))
        self._placement.room.notify_all()
        self._placement.end(row)

    # --- NVMe's own victims ----------------------------------------------------------------------------------

    def nvme_stuck(self) -> bool:
        """No block can go from NVMe, also when those who hold some let go: others hang on each."""
        index, residence, used = self._state.index, self._placement.residence, slice(0, self._state.index.rows_used)
        there = (index.state[used] == READY) & (self._placement.on_nvme[used] != 0) & (index.pins[used] != HARD_PIN)
        rows = np.flatnonzero(there & (residence.children[NVME][used] == 0))
        rows = rows[~np.isin(rows, list(self._placement.anchors))]
        only = index.ready[rows] & ~self._placement.dram[rows] != 0
        return not bool(((index.children[rows] == 0) | ~only).any())

    def nvme_is_full(self) -> None:
        """A block found no slot on NVMe, where nothing can go: for a while none is sent there that would be lost."""
        self._full_until = time.monotonic() + _FULL

    def make_nvme_room(self, most: int) -> int:
        """Evicts up to ``most`` blocks from NVMe: leaves there. One that is in DRAM too stays there."""
        for done in range(most):
            row = self._state.policy.victim(self._evictable_nvme, NVME)
            if row is None:
                return done
            self._evict_nvme(row)
            self._full_until = 0.0
        return most

    def _evictable_nvme(self, row: int) -> bool:
        placement, index = self._placement, self._state.index
        if not self._free(row):
            return False
        return not index.children_at[row] or not index.ready_at[row] & ~placement.dram_at[row]

    def _evict_nvme(self, row: int) -> None:
        self._state.counters["nvme_evicted_blocks"] += 1
        if self._state.index.ready_at[row] & ~self._placement.dram_at[row]:
            self._state.drop(row, "evicted")
        else:
            self._placement.free_nvme(row)
