"""Blocks that leave DRAM: who is written to NVMe first, who only loses its copy, who is dropped."""

from __future__ import annotations

import time

from kvstore.core.errors import Closed
from kvstore.tiers.admission import Admission
from kvstore.tiers.index import READY
from kvstore.tiers.mover import Move, Mover, Priority
from kvstore.tiers.moves import block_move
from kvstore.tiers.placement import DRAM, NVME, Placement
from kvstore.tiers.segments import SlotClass
from kvstore.tiers.state import State


class Demoter:
    """Decides; the bytes are moved by the mover's threads. Methods are called under the lock."""

    def __init__(self, state: State, placement: Placement, admission: Admission) -> None:
        self._state = state
        self._placement = placement
        self.admission = admission
        self.rule = state.config.nvme_write_rule
        self.mover: Mover | None = None  # set once it runs
        self._kinds: dict[int, list[SlotClass]] = {}  # of the slots that victims on their way will free

    def evictable(self, row: int) -> bool:
        """A victim that can go by itself: nobody holds it, and no block hangs on it that would go with it."""
        index = self._state.index
        if not self._free(row):
            return False
        return not index.children_at[row] or self._placement.clean(row) or self._can_write

    def evictable_with_branch(self, row: int) -> bool:
        """The last resort: a block that cannot be written goes with those on NVMe that hang on it."""
        return self._free(row)

    def _free(self, row: int) -> bool:
        return self._state.index.state_at[row] == READY and not self._state.index.leases_at[row]

    @property
    def _can_write(self) -> bool:
        return self.rule != "off" and self._placement.nvme.accepting and self.mover is not None

    def send_off(self, row: int) -> bool:
        """A victim leaves DRAM: at once (True), or when it has been written to NVMe (False)."""
        placement, counters = self._placement, self._state.counters
        if placement.clean(row):
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

    def _refusal(self, row: int) -> str:
        if self.rule == "off":
            return "off"
        if not self._can_write:
            return "unavailable"
        if self._state.index.children_at[row]:  # on NVMe already, and lost without this one
            return ""
        if self.rule == "through":
            return "unwritten"  # its write at commit failed: NVMe is full or in trouble
        size = sum(cut.length for cut in self._state.namespace_of(row).cuts)
        return self.admission.refuses(self._state.policy.score(row), size, time.monotonic())

    def _start(self, row: int) -> bool:
        """Queues the write of a victim, which stays readable in DRAM until it is done."""
        placement, index = self._placement, self._state.index
        move = block_move(
            row, self._state.namespace_of(row), index.key(row), DRAM, NVME, Priority.DEMOTION, held=True
        )  # fmt: skip
        placement.begin(row)
        if not self._queue(move):
            placement.end(row)
            return False
        placement.leave(row, DRAM)
        self.admission.wrote(move.size, time.monotonic())
        self._kinds[row] = self.classes(row)
        placement.leaving.update(self._kinds[row])
        return True

    def _queue(self, move: Move) -> bool:
        try:
            return self.mover is not None and bool(self.mover.demote([move]))
        except Closed:
            return False

    def classes(self, row: int) -> list[SlotClass]:
        """Slot classes of a row's parts in DRAM."""
        cuts, mask = self._state.namespace_of(row).cuts, self._placement.dram_at[row]
        return [self._state.dram.slot_class(cut.length, cut.count) for part, cut in enumerate(cuts) if mask >> part & 1]

    def ended(self, row: int) -> None:
        """The move of a victim has ended, however."""
        self._placement.leaving.subtract(self._kinds.pop(row))
        self._placement.room.notify_all()

    # --- NVMe's own victims ----------------------------------------------------------------------------------

    def make_nvme_room(self, most: int) -> int:
        """Evicts up to ``most`` blocks from NVMe: leaves there. One that is in DRAM too stays there."""
        for done in range(most):
            row = self._state.policy.victim(self._evictable_nvme, NVME)
            if row is None:
                return done
            self._evict_nvme(row)
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
