"""Where blocks are in a store with an NVMe tier, and how their places change. A place changes in one step under the
lock, after the bytes were copied: there is no window in which a block is nowhere."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvstore.core.errors import InvalidArgument
from kvstore.tiers.columns import IntArray, column
from kvstore.tiers.index import READY
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.nvme.ticket import Ticket
from kvstore.tiers.residence import Residence
from kvstore.tiers.segments import SlotClass
from kvstore.tiers.tier import NO_SLOT, SlotArray, TierKind, U64Array

if TYPE_CHECKING:
    from kvstore.tiers.nvme.batch import Barrier
    from kvstore.tiers.nvme.tier import NvmeTier
    from kvstore.tiers.state import State

DRAM, NVME = TierKind.DRAM, TierKind.NVME
LOADED, PREFETCHED = 1, 2  # ``fresh``: brought to DRAM for a reader, or ahead of one, and not used since


class Placement:
    """Guarded by the store's lock, like all of ``State``; methods are called with it held."""

    def __init__(self, state: State, nvme: NvmeTier, residence: Residence) -> None:
        self._state = state
        self.nvme = nvme
        self.residence = residence
        self.index = state.index
        self.dram_at, self.nvme_at = residence.parts_at[DRAM], residence.parts_at[NVME]
        self.dram, self.on_nvme = residence.parts[DRAM], residence.parts[NVME]
        self.numbers: dict[int, int] = {}  # id of a namespace -> its number in the NVMe tier
        self.retiring: dict[int, Barrier] = {}  # id of a dropped namespace that NVMe may not have forgotten for good
        self.moving: Counter[int] = Counter()  # row -> moves that hold it
        self.transit: set[int] = set()  # DRAM slots being filled from NVMe
        self.leaving: Counter[SlotClass] = Counter()  # DRAM slots that moves under way will free
        self.room = threading.Condition(state.lock)  # notified when DRAM slots come free
        self.awaited = 0  # threads that wait for such
        self.anchors: Counter[int] = Counter()  # rows that puts which wait for room hang on: they stay meanwhile
        self.copying = 0  # blocks held while they are written, which stay in DRAM: they may go afterwards
        self.unsettled: dict[int, list[Ticket]] = {}  # row -> writes of it that may not be durable yet
        self.fresh = column(state.index.max_blocks, np.uint8)
        self.fresh_rows = 0

    # --- namespaces ------------------------------------------------------------------------------------------

    def number(self, namespace: Namespace) -> int:
        """The NVMe tier's number of a namespace. Raises InvalidArgument when that tier's table is full."""
        found = self.numbers.get(namespace.id)
        if found is None:
            found = self.numbers[namespace.id] = self.nvme.open_namespace(namespace.canonical)
        return found

    def note_pins(self, namespace: Namespace, rows: Sequence[int], value: int) -> None:
        """Notes pins where a restart without the memory file finds them; 0: there are none (any more)."""
        with contextlib.suppress(InvalidArgument):  # NVMe's table is full: these blocks are never there
            number = self.number(namespace) if value else self.numbers.get(namespace.id)
            if number is not None:
                self.nvme.pins.set(number, map(self.index.key, rows), value)

    def retire_namespace(self, namespace: Namespace) -> None:
        """It is being dropped: once that is durable, none of its blocks comes back after a restart."""
        found = self.numbers.get(namespace.id)
        if found is not None:
            self.nvme.retire_namespace(found)
            self.retiring[namespace.id] = self.nvme.barrier()

    def settle_drops(self) -> int:
        """Frees the records of dropped namespaces that NVMe has forgotten for good; how many are left."""
        for number, barrier in list(self.retiring.items()):
            if barrier.done.is_set() and barrier.reason:
                self.retiring[number] = self.nvme.barrier()  # the removal waits for the disk
            elif barrier.done.is_set() and self._state.namespaces.by_id(number) is None:
                self._state.namespaces.forget(number)
                del self.retiring[number]
        return len(self.retiring)

    def forget_namespace(self, namespace: Namespace) -> None:
        """Its last block has gone."""
        found = self.numbers.pop(namespace.id, None)
        if found is not None:
            self.nvme.drop_namespace(found)

    # --- holds of moves --------------------------------------------------------------------------------------

    def begin(self, row: int) -> None:
        """A move holds a row from now on."""
        self.moving[row] += 1
        self.index.leases_at[row] += 1

    def end(self, row: int) -> None:
        """It holds it no more."""
        self.moving[row] -= 1
        if not self.moving[row]:
            del self.moving[row]
        self._state.unhold(np.array([row]))

    # --- membership ------------------------------------------------------------------------------------------

    def enter(self, rows: IntArray, tier: TierKind) -> None:
        """Those of (distinct) rows that are no members of a tier become such."""
        residence = self.residence
        new = rows[residence.member[rows] >> np.uint8(tier) & np.uint8(1) == 0]
        if len(new):
            residence.enter(new, tier)
            self._state.policy.entered(new, tier)

    def leave(self, row: int, tier: TierKind) -> None:
        """A member of a tier leaves its eviction order; it stays known."""
        if self.residence.has(row, tier):
            self._state.policy.left(row, tier)
            self.residence.leave(row, tier)

    def gone(self, row: int) -> None:
        """A block is dropped, from all tiers; the policy has been told."""
        for tier in self.residence.tiers:
            if self.residence.has(row, tier):
                self.residence.leave(row, tier)
        self.used(row)

    def removed(self, row: int) -> None:
        """The row itself goes, its slots were freed."""
        self.dram_at[row] = self.nvme_at[row] = 0
        self.unsettled.pop(row, None)
        self.room.notify_all()

    # --- places ----------------------------------------------------------------------------------------------

    def arrived(self, rows: IntArray, masks: U64Array) -> None:
        """Parts of (distinct) rows were committed in DRAM; a mask a row."""
        self.dram[rows] |= masks
        self.enter(rows, DRAM)

    def brought(self, row: int, places: dict[int, tuple[int, int]], why: int) -> None:
        """Parts of a row, by number with slot and generation, can now be read in DRAM too."""
        self._locate(row, DRAM, places)
        self.enter(np.array([row]), DRAM)
        self.fresh_rows += not self.fresh[row]
        self.fresh[row] = why

    def written(self, row: int, places: dict[int, tuple[int, int]], ticket: Ticket) -> None:
        """Parts of a row can now be read on NVMe too."""
        self._locate(row, NVME, places)
        self.enter(np.array([row]), NVME)
        self.unsettled.setdefault(row, []).append(ticket)

    def settled(self, row: int, ticket: Ticket) -> None:
        """A write is durable, or has failed."""
        tickets = self.unsettled.get(row, [])
        if ticket in tickets:
            tickets.remove(ticket)
            if not tickets:
                del self.unsettled[row]

    def _locate(self, row: int, tier: TierKind, places: dict[int, tuple[int, int]]) -> None:
        self._state.journal.row_changed(row)
        parts, mask = self.index.parts, self.residence.parts_at[tier]
        for part, (slot, generation) in places.items():
            at = self.index.part_row(row, part)
            parts.slot_at[tier][at], parts.generation_at[tier][at] = slot, generation
            mask[row] |= 1 << part

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Somebody waits for ``room``: what is written is committed at once, since DRAM copies stay until then."""
        self.awaited += 1
        self.nvme.commit_soon()
        try:
            yield
        finally:
            self.awaited -= 1

    def free_dram(self, row: int) -> None:
        """A row whose parts are all on NVMe gives its DRAM slots back."""
        state = self._state
        self.leave(row, DRAM)
        if self.fresh[row] == PREFETCHED:
            state.counters["prefetch_wasted_blocks"] += 1
        self.used(row)
        state.dram.free(self._take(row, DRAM))
        for at in self.index.parts.of(row):
            state.verified(at)
        self.room.notify_all()

    def free_nvme(self, row: int, bad: bool = False) -> bool:
        """A row loses its copies on NVMe. False: nothing of it is left, the caller drops it (and its subtree)."""
        self.leave(row, NVME)
        slots = self._take(row, NVME)
        if len(slots):
            (self.nvme.free_bad if bad else self.nvme.free)(slots)
        self.unsettled.pop(row, None)
        return self._shrink(row)

    def _shrink(self, row: int) -> bool:
        """Parts that are nowhere any more are not READY."""
        index, left = self.index, self.dram_at[row]
        lost = index.ready_at[row] & ~left
        if lost and left:
            namespace = self._state.namespace_of(row)
            for part, cut in enumerate(namespace.cuts):
                if lost >> part & 1:
                    index.parts.drop(row, part)
                    namespace.bytes -= cut.length
                    self._state.ready_bytes -= cut.length
            index.ready_at[row] = left
        return bool(left)

    def _take(self, row: int, tier: TierKind) -> SlotArray:
        """The slots of a row's READY parts in a tier, which are no places of it any more."""
        self._state.journal.row_changed(row)
        parts, mask, slots = self.index.parts, self.residence.parts_at[tier], []
        for at in parts.of(row):
            if mask[row] >> int(parts.part[at]) & 1:
                slots.append(parts.slot_at[tier][at])
                parts.slot_at[tier][at] = NO_SLOT
        mask[row] = 0
        return np.array(slots, np.uint32)

    # --- what is where ---------------------------------------------------------------------------------------

    def clean(self, row: int) -> bool:
        """All that is in DRAM can be read on NVMe as well."""
        return not self.dram_at[row] & ~self.nvme_at[row]

    def safe(self, row: int) -> bool:
        """All that is in DRAM is on NVMe as well, for good: a node killed now finds it there."""
        return self.clean(row) and row not in self.unsettled

    def same(self, row: int, namespace: int, key: bytes) -> bool:
        """The row is still that block, and can be read."""
        return self.index.find_one(namespace, key) == row and self.index.state_at[row] == READY

    def used(self, row: int) -> int:
        """A block that was brought to DRAM is used for the first time (or goes): why it was brought, 0: it was not."""
        why = int(self.fresh[row])
        if why:
            self.fresh[row] = 0
            self.fresh_rows -= 1
        return why
