"""The block store of one node, as its servers see it: a library without network, asyncio or gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from kvstore.core.errors import Closed, Unsupported
from kvstore.core.keys import KeyArray
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.absent import AbsentNvme
from kvstore.tiers.acknowledging import Puts
from kvstore.tiers.background import Background
from kvstore.tiers.chains import Chains
from kvstore.tiers.committing import Committer
from kvstore.tiers.crowding import Crowding
from kvstore.tiers.dram import DramTier
from kvstore.tiers.evicting import Evictor
from kvstore.tiers.housekeeping import Housekeeper
from kvstore.tiers.layout import Layout
from kvstore.tiers.leases import held
from kvstore.tiers.lifecycle import Lifecycle, Rotated
from kvstore.tiers.matching import Matcher, part_mask
from kvstore.tiers.memfile import MemoryFile
from kvstore.tiers.movement import Movement
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.opening import OpenedNvme, check_config, nvme_report, open_nvme
from kvstore.tiers.reading import Reader
from kvstore.tiers.recovery import recover
from kvstore.tiers.registry import POLL_SECONDS, Registry
from kvstore.tiers.sessions import Session
from kvstore.tiers.sizes import described, sizes
from kvstore.tiers.state import State
from kvstore.tiers.tier import Entries, TierKind, TierStat, U16Array, U64Array
from kvstore.tiers.upkeep import Upkeep
from kvstore.tiers.values import (
    AckLevel,
    Acquired,
    ChainSlice,
    MatchResult,
    NamespaceStat,
    NamespaceView,
    Prefetched,
    Reserved,
    SharedMemory,
    StoreConfig,
    StoreStat,
)
from kvstore.tiers.writing import Writer

_PRESSURE_SECONDS = 0.05

__all__ = ["BlockStore", "ChainSlice", "Session", "StoreConfig"]


class BlockStore:
    """Blocks in tiers, and everything known about them. Safe to use from any number of threads.

    A namespace is meant by the handle that ``open_namespace`` gave. Keys are arrays of shape (n, 2). Errors are
    those of ``kvstore.core.errors``; a refused call has no effect.
    """

    def __init__(self, config: StoreConfig) -> None:
        """Opens or makes the memory file and re-adopts what lies in it. Raises ConfigError."""
        check_config(config)
        self.config = config
        self._closing = threading.Lock()
        self._closed = False
        self._threads: list[Background] = []
        self._movement: Movement | None = None
        found = open_nvme(config)
        self._absent = found if isinstance(found, AbsentNvme) else None
        nvme = found.tier if isinstance(found, OpenedNvme) else None
        try:
            file = MemoryFile(config.memory_file, config.node_id, config.product, self._plan)
            try:
                self._state = State(config, file, nvme)
            except BaseException:
                file.close()
                raise
        except BaseException:
            if nvme:
                nvme.close()
            raise
        try:
            self._open(file.fresh, found.entries if isinstance(found, OpenedNvme) else [])
        except BaseException:
            self.close()
            raise

    def _open(self, fresh: bool, on_nvme: list[Entries]) -> None:
        self.journal, self.chains = self._state.journal, Chains(self._state)
        self._housekeeper = Housekeeper(self._state)
        self.learn = self._housekeeper.learn  # what requests leave undone: to be called when a reply was sent
        self._committer = Committer(self._state)
        self._registry = Registry(self._state, self._committer)
        self._evictor = Evictor(self._state)
        self._matcher = Matcher(self._state)
        self._writer = Writer(self._state, self._evictor.make_room)
        self._reader = Reader(self._state, self._matcher, self._registry)
        if not fresh or self._state.placement:
            recover(self._state, self._registry, on_nvme)
        self._state.pins.recover()
        self._upkeep = Upkeep(self._state, self._evictor)
        self._crowding = Crowding(self._state, self._evictor)
        self._movement = self._move()
        self._puts = Puts(self._state, self._writer, self._committer, self._movement, absent=self._absent is not None)
        self._evictor.grow()
        self._threads = self._start()

    def _move(self) -> Movement | None:
        if self._state.placement is None:
            return None
        movement = Movement(self._state, self._state.placement, self._evictor.make_room)
        self._evictor.demoter, self._reader.promoter = movement.demoter, movement.promoter
        self._registry.ended = lambda session: movement.promoter.cancel(session.token)
        return movement

    def _plan(self, page: int) -> Layout:
        config = self.config
        return Layout.plan(
            config.capacity_bytes, page, config.max_sessions, config.segment_bytes, config.max_leased_slots
        )

    def _start(self) -> list[Background]:
        self._reaper = Background("reaper", self._reap, self._failed)
        self._registry.wake = self._reaper.wake
        self._pressure = Background("evict", self._relieve, self._failed)
        threads = [self._reaper, self._pressure, Background("housekeeping", self._housekeeper.step, self._failed)]
        if self.config.prefault:
            threads.append(Background("prefault", lambda: 0.0 if self._evictor.grow() else None, self._failed))
        if self._absent:
            threads.append(Background("nvme-probe", self._absent.step, self._failed))
        threads += self._upkeep.start(self._failed)
        return threads + (self._movement.start(self._failed) if self._movement else [])

    def close(self) -> None:
        """Writes to NVMe what is in DRAM only, for ``flush_seconds`` at most; stops the threads and unmaps the file."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        for thread in self._threads:
            thread.stop()
        self._housekeeper.flush()
        if self._movement:
            self._movement.flush(self.config.flush_seconds)
            self._movement.close()
            self._movement.settle()
        if self._state.placement:
            self._state.placement.nvme.close()
        self._state.close()

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what servers need to know -------------------------------------------------------------------------

    @property
    def dram(self) -> DramTier:
        """The DRAM tier: ``writable`` and ``readable`` give bytes at an offset of the memory file."""
        return self._state.dram

    @property
    def boot_id(self) -> bytes:
        """16 bytes, new at each start."""
        return self._state.boot_id

    def shared_memory(self) -> SharedMemory:
        """What a client needs to know before it maps the memory file."""
        file, lock_file = self._use().file, self._state.lock_file
        return SharedMemory(
            bytes=file.layout.file_bytes, segment_bytes=file.layout.segment_bytes, data_offset=file.layout.data_at,
            lock_descriptor=lock_file.descriptor, lock_device=lock_file.device, lock_inode=lock_file.inode,
        )  # fmt: skip

    def open_reader(self) -> int:
        """A new read-only descriptor of the memory file, to pass to a client; the caller closes it."""
        return self._use().file.open_reader()

    def open_writer(self) -> int:
        """A new writable descriptor of the memory file, to pass to a client; the caller closes it."""
        return self._use().file.open_writer()

    # --- namespaces ----------------------------------------------------------------------------------------

    def open_namespace(self, canonical: bytes, strict: bool = False) -> NamespaceView:
        """Finds or makes a namespace; in a full table one that nobody uses gives way. Raises InvalidArgument,
        NamespaceMismatch (when strict), NoSpace (table full)."""
        self._use()
        return self._crowding.open(canonical, strict)

    def namespaces(self) -> list[NamespaceStat]:
        """All namespaces with their sizes."""
        by_tier = sizes(self._use())
        with self._state.lock:
            return [described(self._state, namespace, by_tier) for namespace in self._state.namespaces]

    def namespace_at(self, root: bytes) -> NamespaceView:
        """The namespace of a root. Raises UnknownNamespace."""
        with self._use().lock:
            found = self._state.namespaces.by_root(root)
            return found.view()

    def spec(self, namespace: int) -> NamespaceSpec:
        """The spec of a handle. Raises UnknownNamespace."""
        return self._namespace(namespace).spec

    def drop_namespace(self, root: bytes) -> tuple[int, int]:
        """Drops a namespace: how many blocks it had, those of them a lease still keeps. Raises UnknownNamespace."""
        return self.lifecycle.drop(root)

    def rotate_namespace(self, root: bytes) -> Rotated:
        """Voids all that a namespace holds, as after new weights. Raises UnknownNamespace, Busy, Unavailable."""
        return self.lifecycle.rotate(root)

    @property
    def lifecycle(self) -> Lifecycle:
        """How namespaces are rotated and dropped."""
        self._use()
        return self._upkeep.lifecycle

    def _namespace(self, handle: int) -> Namespace:
        return self._use().namespaces.by_handle(handle)

    # --- sessions ------------------------------------------------------------------------------------------

    def open_session(self, shared_memory: bool, name: str = "") -> Session:
        """A new session. Raises Busy at ``max_sessions``."""
        self._use()
        return self._registry.open(shared_memory, name)

    def session_locked(self, session: Session) -> bool:
        """The session's process holds its byte of the lock file."""
        return self._use().lock_file.locked(session.index)

    def close_session(self, session: Session) -> None:
        """The client is gone. What a shared-memory session held comes back when its process has let go of its lock."""
        self._use()
        self._registry.close(session)

    # --- reading -------------------------------------------------------------------------------------------

    def match(self, namespace: int, keys: KeyArray, parts: Sequence[int] = (), request_id: int = 0) -> MatchResult:
        """The longest cached prefix of a whole chain, by part and tier. With a request id it counts as use."""
        return self._matcher.match(self._namespace(namespace), keys, parts, request_id)

    def acquire(
        self, session: Session, namespace: int, keys: KeyArray, first_block: int = 0, parts: Sequence[int] = (),
        request_id: int = 0, max_blocks: int = 0, range_offset: int = 0, range_length: int = 0,
        deadline: float | None = None, whole: bool = False,
    ) -> Acquired:  # fmt: skip
        """Leases the cached blocks of a whole chain from ``first_block`` on (at most ``max_blocks``, 0: no limit).

        The range (bytes of each part, 0 and 0: all) says whose chunks' checksums are wanted. Raises InvalidArgument,
        MisalignedRange, SessionLost, UnknownNamespace.

        Blocks that are on NVMe only are loaded when there is a ``deadline`` (time.monotonic); what has come is answered
        at once, with ``prefix_blocks`` beyond ``blocks``, and the rest goes on loading for the next call. ``whole``:
        answered when all has come. What does not come in time is a miss, LOADING.
        """
        return self._reader.acquire(
            session, self._namespace(namespace), keys, first_block, parts, request_id, max_blocks, range_offset,
            range_length, deadline, whole,
        )  # fmt: skip

    def prefetch(
        self, session: Session | None, namespace: int, keys: KeyArray, tier: TierKind = TierKind.DRAM,
        parts: Sequence[int] = (), deadline: float | None = None,
    ) -> Prefetched:  # fmt: skip
        """Starts bringing blocks of a whole chain to a tier ahead of their use; joins what is on its way. What has not
        started at the deadline (time.monotonic), or when the session (None: nobody's) ends, is dropped.

        Raises Unsupported, UnknownNamespace, SessionLost, InvalidArgument.
        """
        space = self._namespace(namespace)
        if session is not None:
            self._registry.check(session)
        if tier == TierKind.DRAM and self._absent:  # nothing can come from there: a disk in trouble is no error
            here = self._matcher.match(space, keys, parts, 0).blocks
            return Prefetched(0, here, len(keys) - here)
        if tier != TierKind.DRAM or self._movement is None:
            raise Unsupported(
                f"prefetch to {TierKind(tier).name.lower()} is not possible here: blocks are brought from NVMe to "
                "DRAM, by a node that has both"
            )
        mask = sum(1 << part for part in part_mask(space, parts)[0])
        return self._movement.promoter.prefetch(session.token if session else b"", space, keys, mask, deadline)

    def release(self, session: Session, leases: Sequence[int]) -> list[bool]:
        """Gives leases back; for each whether it was held until now."""
        self._use()
        return self._registry.release(session, list(leases))

    # --- writing -------------------------------------------------------------------------------------------

    def reserve(
        self, session: Session, namespace: int, chain: ChainSlice, parts: Sequence[int] = (), request_id: int = 0,
        importance: U16Array | None = None, appended_tokens: int = 0, ack: int = AckLevel.VISIBLE,
        deadline: float | None = None,
    ) -> Reserved:  # fmt: skip
        """Slots for the blocks of ``chain`` that are not here, to be filled and committed or aborted by the caller.

        With acknowledgement DURABLE, blocks that are here already are made durable now; NOT_DURABLE: not in time.
        Raises InvalidArgument, BadKey, SessionLost, UnknownNamespace, Unsupported.
        """
        self._puts.check_ack(ack)
        space = self._namespace(namespace)
        space.used = time.time()
        wanted, _ = part_mask(space, parts)
        return self._puts.reserve(session, space, chain, wanted, request_id, importance, appended_tokens, ack, deadline)

    def commit(
        self, session: Session, reservation: int, checksums: U64Array, ack: int = AckLevel.VISIBLE,
        deadline: float | None = None,
    ) -> bytes:  # fmt: skip
        """Makes reserved blocks visible; one PutOutcome byte each. ``checksums``: of every chunk, in slot order.

        With acknowledgement DURABLE it returns when the blocks, and all that they hang on, are synced on NVMe; a block
        for which the deadline (time.monotonic, 0 and none: ``durable_wait``) comes first is NOT_DURABLE, but visible.
        Raises InvalidArgument, SessionLost, Unsupported.
        """
        self._puts.check_ack(ack)
        self._use()
        return self._puts.commit(session, reservation, checksums, ack, deadline)

    def abort(self, session: Session, reservation: int) -> None:
        """Gives a reservation up; the caller writes to its slots no more. Raises InvalidArgument, SessionLost."""
        self._use()
        self._committer.abort(session, reservation)

    # --- keeping -------------------------------------------------------------------------------------------

    def pin(self, namespace: int, keys: KeyArray, hard: bool = False, ttl: float = 0.0) -> int:
        """Pins blocks, for ``ttl`` seconds or (0) for good; how many. See ``Pins.pin`` for what it raises."""
        return self._use().pins.pin(self._namespace(namespace), keys, hard, ttl)

    def unpin(self, namespace: int, keys: KeyArray) -> int:
        """Lifts pins; how many."""
        return self._use().pins.unpin(self._namespace(namespace), keys)

    # --- dropping ------------------------------------------------------------------------------------------

    def evict(self, namespace: int, keys: KeyArray) -> tuple[int, int, int]:
        """Drops blocks and what hangs on them: blocks dropped, those of them a lease still keeps, keys absent."""
        return self._evictor.evict(self._namespace(namespace), keys)

    def purge(self) -> tuple[int, int]:
        """Drops every block of every namespace: how many, and those of them a lease still keeps."""
        dropped = [self._evictor.drop_all(found, "purged") for found in self._use().namespaces]
        return sum(one[0] for one in dropped), sum(one[1] for one in dropped)

    # --- numbers -------------------------------------------------------------------------------------------

    def stat(self) -> StoreStat:
        """Everything a status page shows, taken at one moment."""
        state = self._use()
        index, by_tier = state.index, sizes(state)
        with state.lock:
            sessions = list(state.sessions.values())
            return StoreStat(
                boot_id=state.boot_id, tiers=self._tier_stats(),
                blocks=len(index) - state.writing, writing=state.writing,
                leased_blocks=int(np.count_nonzero(index.leases[: index.rows_used])),
                held=held(sessions),
                sessions=sum(not one.orphan for one in sessions), orphan_sessions=sum(one.orphan for one in sessions),
                unverified=state.unverified_parts, index_bytes=index.nbytes + state.policy.nbytes,
                ready_bytes=state.ready_bytes, counters=dict(state.counters),
                namespaces=tuple(described(state, found, by_tier) for found in state.namespaces),
                pins=state.pins.stat(),
                nvme=self._absent.report() if self._absent else nvme_report(state.placement, self._movement),
            )  # fmt: skip

    def _tier_stats(self) -> tuple[TierStat, ...]:
        here = tuple(tier.stat() for tier in self._state.tiers)
        return (*here, self._absent.stat()) if self._absent else here

    # --- threads -------------------------------------------------------------------------------------------

    def _reap(self) -> float | None:
        return POLL_SECONDS if self._registry.reap() else None

    def _relieve(self) -> float:
        return 0.0 if self._evictor.keep_watermarks() else _PRESSURE_SECONDS

    def _failed(self, thread: str) -> None:
        with self._state.lock:
            self._state.counters["background_failures"] += 1

    def _use(self) -> State:
        if self._closed:
            raise Closed("the store is closed")
        return self._state
