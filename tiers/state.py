"""What all rooms of the store share: the lock and everything it guards, and how a block goes."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import FEW, IntArray, column
from kvstore.tiers.dram import DramTier
from kvstore.tiers.eviction import make_policy
from kvstore.tiers.eviction.late import Late
from kvstore.tiers.idle import IdleFirst
from kvstore.tiers.index import EVICTING, BlockIndex
from kvstore.tiers.journal import Journal
from kvstore.tiers.leases import Holdings
from kvstore.tiers.memfile import MemoryFile, lock_path
from kvstore.tiers.namespaces import Namespace, Namespaces
from kvstore.tiers.pins import Pins
from kvstore.tiers.residence import Residence
from kvstore.tiers.sessions import LockFile, Session, SessionTable
from kvstore.tiers.tier import NO_SLOT, SlotArray, Tier, TierKind
from kvstore.tiers.values import StoreConfig
from kvstore.tiers.victims import VictimAge

if TYPE_CHECKING:
    from kvstore.tiers.nvme.tier import NvmeTier
    from kvstore.tiers.placement import Placement

PIECE = 256  # keys worked on at a time under the lock


class State:
    """Guarded by ``lock``; methods are called with it held unless they say otherwise."""

    def __init__(self, config: StoreConfig, file: MemoryFile, nvme: NvmeTier | None = None) -> None:
        self.config = config
        self.file = file
        self.lock = threading.Lock()
        self.boot_id = secrets.token_bytes(16)
        self.dram = DramTier(file, self.lock)
        self.tiers: tuple[Tier, ...] = (self.dram, nvme) if nvme else (self.dram,)
        self.namespaces = Namespaces(file)
        self.lock_file = LockFile(lock_path(file.path))
        room = config.capacity_bytes + (nvme.capacity if nvme else 0)
        blocks = config.max_blocks or max(65_536, room >> 14)
        parts = config.max_parts or max(blocks, config.capacity_bytes >> 12)  # no tier has more slots than that
        self.index = BlockIndex(blocks, parts)
        residence = Residence(self.index, (TierKind.DRAM, TierKind.NVME)) if nvme else None
        orders = [residence.rows(tier) for tier in residence.tiers] if residence else []
        policy = make_policy(config.policy, self.index, self._block_tokens, orders)
        self.policy = Late(IdleFirst(policy, self.namespaces, config.namespace_idle))
        table = SessionTable(file)
        self.holdings = Holdings(table, config.max_leased_bytes or config.capacity_bytes // 2)
        self.sessions: dict[int, Session] = {}
        self.counters: Counter[str] = Counter()
        self.unverified: npt.NDArray[np.uint8] = column(parts, np.uint8)
        self.unverified_parts = 0
        self.ready_bytes = 0
        self.recovery_seconds = 0.0
        self.touches: deque[IntArray] = deque(maxlen=4096)  # rows used lately, for the stamps in their headers
        self.victims = VictimAge()
        self.draining = False  # new blocks have no place here
        self.writing = 0  # rows that no part of is READY yet
        self.pins = Pins(self)
        self.journal = Journal(self)
        self.placement = self._placement(nvme, residence)  # None: there is DRAM only

    def _placement(self, nvme: NvmeTier | None, residence: Residence | None) -> Placement | None:
        if nvme is None or residence is None:
            return None
        from kvstore.tiers.placement import Placement

        return Placement(self, nvme, residence)

    def _block_tokens(self, namespace: int) -> int:
        found = self.namespaces.by_id(namespace)
        return found.spec.block_tokens if found else 1

    def close(self) -> None:
        """Lets go of the memory file; nothing may be called after it."""
        with self.lock:
            self.dram.close()
            self.namespaces.close()
            self.holdings.table.close()
            self.lock_file.close()
            self.file.close()

    # --- holding rows --------------------------------------------------------------------------------------

    def hold(self, rows: IntArray) -> None:
        """Keeps (distinct) rows and their slots where they are."""
        if len(rows) < FEW:
            leases = self.index.leases_at
            for row in rows.tolist():
                leases[row] += 1
        else:
            self.index.leases[rows] += 1

    def unhold(self, rows: IntArray) -> None:
        """Ends a hold; rows that were only kept for it go now."""
        index = self.index
        if len(rows) < FEW:
            leases, state = index.leases_at, index.state_at
            for row in rows.tolist():
                leases[row] -= 1
                if state[row] == EVICTING and not leases[row]:
                    self._remove(row)
            return
        left = index.leases[rows] - 1
        index.leases[rows] = left
        going = index.state[rows] == EVICTING
        if np.count_nonzero(going):
            for row in rows[going & (left == 0)].tolist():
                self._remove(row)

    # --- blocks that go ------------------------------------------------------------------------------------

    def drop(self, row: int, cause: str) -> bool:
        """Drops a block without children: nobody finds it any more. False: held, so its slots come back later."""
        index = self.index
        if index.pins_at[row]:
            self.pins.dropped(row)
        if cause == "evicted":
            now = time.monotonic()
            self.victims.note(self.policy.unused(row, now), now)
        self.policy.removed(row)
        self.journal.gone(row)
        if self.placement:
            self.placement.gone(row)
        self.counters["dropped_bytes_" + cause] += self._uncount(row)
        self.counters["dropped_blocks_" + cause] += 1
        index.state_at[row] = EVICTING
        if index.leases_at[row]:
            self._forget(row)
            index.detach(row)
            return False
        self._remove(row)
        return True

    def drop_subtree(self, row: int, cause: str) -> tuple[int, int]:
        """Drops a block and all that follows it, called *without* the lock. How many; those of them still held."""
        with self.lock:
            key, number = self.index.key(row), self.index.namespace_at[row]
        dropped = held = 0
        while True:
            with self.lock:
                if self.index.find_one(number, key) != row:
                    return dropped, held
                piece = self.index.descendants(row, PIECE // 4)
                freed = [self.drop(one, cause) for one in piece]
            dropped += len(piece)
            held += freed.count(False)

    def _uncount(self, row: int) -> int:
        """The bytes of its READY parts."""
        namespace = self.namespace_of(row)
        ready = self.index.ready_at[row]
        if not ready:
            self.writing -= 1
        size = sum(cut.length for part, cut in enumerate(namespace.cuts) if ready >> part & 1)
        namespace.bytes -= size
        self.ready_bytes -= size
        return size

    def _slots(self, row: int, tier: Tier) -> SlotArray:
        """Where the parts of a block lie in a tier."""
        at = self.index.parts.slot_at[tier.kind]
        slots = [at[part_row] for part_row in self.index.parts.of(row)]
        return np.array([slot for slot in slots if slot != NO_SLOT], np.uint32)

    def _forget(self, row: int) -> None:
        """A restart must not bring the block back; its slots stay taken."""
        for tier in self.tiers:
            if len(slots := self._slots(row, tier)):
                tier.forget(slots)

    def _remove(self, row: int) -> None:
        """Frees the slots and the row."""
        index = self.index
        for tier in self.tiers:
            if len(slots := self._slots(row, tier)):
                tier.free(slots)
        for at in index.parts.of(row):
            self.verified(at)
        namespace = self.namespace_of(row)
        if self.placement:
            self.placement.removed(row)
        index.remove(row)
        namespace.rows -= 1
        if namespace.dropping and not namespace.rows:
            self.finish_drop(namespace)

    def finish_drop(self, namespace: Namespace) -> None:
        """The last block of a dropped namespace has gone."""
        on_nvme = self.placement is not None and namespace.id in self.placement.retiring
        self.namespaces.finish_drop(namespace, keep=on_nvme)
        if self.placement:
            self.placement.forget_namespace(namespace)
            self.placement.settle_drops()

    def verified(self, part_row: int) -> None:
        """The part needs no check before use any more."""
        if self.unverified[part_row]:
            self.unverified[part_row] = 0
            self.unverified_parts -= 1

    def namespace_of(self, row: int) -> Namespace:
        found = self.namespaces.by_id(self.index.namespace_at[row])
        assert found is not None, "rows keep their namespace's id in use"
        return found
