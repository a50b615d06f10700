"""The NVMe tier: blocks on a local disk that survive a power loss, or a miss, and never wrong bytes."""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from kvstore.core.errors import ChecksumMismatch, ConfigError, InvalidArgument
from kvstore.tiers.nvme.batch import Barrier
from kvstore.tiers.nvme.blockio import load_trailer, read_range, write_range
from kvstore.tiers.nvme.committer import GENERATION_KEY, Committer
from kvstore.tiers.nvme.directory import NvmeConfig, NvmeDirectory
from kvstore.tiers.nvme.figures import NvmeStat
from kvstore.tiers.nvme.files import SegmentFiles
from kvstore.tiers.nvme.format import ENTRY, EntryArray, digest
from kvstore.tiers.nvme.health import Cause, Health, HealthKeeper, HealthLog
from kvstore.tiers.nvme.index import IndexFailed, IndexGone, IndexProcess, Meta
from kvstore.tiers.nvme.index_wire import NAMESPACES, SETTINGS
from kvstore.tiers.nvme.keeper import Keeper
from kvstore.tiers.nvme.namespaces import NamespaceTable
from kvstore.tiers.nvme.notes import PinNotes
from kvstore.tiers.nvme.pool import Bounce, IoPool, Lane
from kvstore.tiers.nvme.recovery import Recovery
from kvstore.tiers.nvme.scrub import OnBad, Scrubber
from kvstore.tiers.nvme.slots import SlotTable
from kvstore.tiers.nvme.ticket import Ticket
from kvstore.tiers.nvme.transfer import BlockMover, Fetched, Want, run_all
from kvstore.tiers.tier import Entries, SlotArray, Slots, Tier, TierKind, TierStat, Transfer, U64Array

log = logging.getLogger(__name__)


class NvmeTier(Tier):
    """A tier over a directory. Opening raises ConfigError (in use, another node's, another format) and OSError.

    Two ways to use it. ``persist`` and ``fetch`` move whole blocks, each in one I/O with its trailer, and check what
    they read: the store's way. ``write``, ``record`` and ``read`` are those of every tier.

    A slot belongs to the caller from ``allocate`` to ``free``, also when a write to it failed. A freed slot is given
    out again after the removal of its entry is durable, one commit later. No call raises for what the disk does
    but ``read``, ``write``, ``sync`` and ``checksums`` (OSError); ``health`` tells the state.
    """

    kind: ClassVar[TierKind] = TierKind.NVME
    name: ClassVar[str] = "nvme"
    alignment: ClassVar[int] = 4096

    def __init__(self, config: NvmeConfig, on_health: Callable[[Health], None] = lambda health: None) -> None:
        if importlib.util.find_spec("lmdb") is None:
            raise ConfigError("the NVMe tier needs the library lmdb: pip install 'kvstore-llm[node]'")
        self._recovered = False
        self.config = config
        self._directory = NvmeDirectory(config.directory, config.node_id, config.segment_size())
        segment_bytes = self._directory.format.segment_bytes  # of an existing directory: as it was made
        if config.capacity_bytes < 2 * segment_bytes:
            self._directory.unlock()
            raise ConfigError(
                f"{config.directory} was made with segments of {segment_bytes} bytes: give it a capacity of at least "
                f"{2 * segment_bytes} bytes, or move it away",
                segment_bytes=segment_bytes,
            )
        self._on_health, self._health_log = on_health, HealthLog(str(config.directory))
        self._health = HealthKeeper(self._health_changed)
        self._files = SegmentFiles(config.directory, segment_bytes)
        self._slots = SlotTable(max(1, config.capacity_bytes // segment_bytes), segment_bytes)
        self.namespace_table = NamespaceTable()
        self._committer = Committer(
            self._files, self._slots, self._health, self._start_index, config.commit_interval, config.commit_entries
        )
        self.pins = PinNotes(self._committer)
        self._pool = IoPool(config.io_threads, config.queue_depth)
        self._mover = BlockMover(
            self._pool, self._files, self._slots, self.namespace_table, self._committer, self._health
        )
        self._keeper = Keeper(
            self._directory, self._files, self._slots, self._committer, self._health, config.capacity_bytes,
            config.probe_interval, self._health_log,
        )  # fmt: skip
        self._scrubber = Scrubber(
            self._pool, self._files, self._slots, self._health, self._mover.counters, config.scrub_bytes
        )
        self._tickets: set[Ticket] = set()  # not settled yet
        self._failed = ""  # why something was not made durable since the last sync
        self._tickets_lock = threading.Lock()

    def _start_index(self) -> IndexProcess:
        return IndexProcess(self._directory.index, self._directory.lock_fd, self.config.index_timeout)

    # --- start -----------------------------------------------------------------------------------------------

    def recover(self) -> Iterator[Entries]:
        """Once, after opening, to its end: only then can slots be allocated. Raises OSError when the index cannot
        be read (``kvstore fsck`` may rebuild it)."""
        index = self._committer.index
        if index is None:
            raise OSError(errno.EIO, f"the NVMe index cannot be read: {self._health.health.reason}")
        try:
            self.namespace_table.load(index.metas(NAMESPACES))
            recovery = Recovery(self._slots, self._files.segment_bytes, self._open_segments(), self._parts())
            yield from recovery.batches(index.scan())
            self._start(index, recovery)
        except (IndexGone, IndexFailed) as error:
            raise OSError(errno.EIO, f"the NVMe index cannot be read: {error}") from None

    def _open_segments(self) -> list[int]:
        """Opens segment files within the capacity. Those beyond (it was lowered) are given back at ``_start``."""
        most = (self.config.capacity_bytes - self._committer.status.file_bytes) // self._files.segment_bytes
        numbers = [number for number in self._files.existing() if number < most]
        for number in numbers:
            self._files.open(number, self._directory.readonly)
        return numbers

    def _parts(self) -> dict[int, int]:
        known = (self.namespace_table.get(number) for number in self.namespace_table.all())
        return {entry.number: len(entry.cuts) for entry in known if entry}

    def _start(self, index: IndexProcess, recovery: Recovery) -> None:
        """Entries that were dropped go from the index before their slots can be given out."""
        settings = index.metas(SETTINGS)
        self.pins.load(settings)
        start = int(settings.get(GENERATION_KEY, b"1"))
        self._slots.generation = self._slots.generation_limit = start
        if self._directory.readonly:
            self._health.trouble(Cause.READ_ONLY, f"{self._directory.path} is on a read-only file system")
        if not index.hello.readonly:
            dropped = np.concatenate(recovery.dropped or [np.empty(0, np.uint32)])
            index.commit(b"", dropped.astype(">u4").tobytes())
            for number in set(self._files.existing()) - self._files.known:
                self._files.remove(number)
        else:
            self._committer.disown(np.concatenate(recovery.dropped or [np.empty(0, np.uint32)]))
        for number in sorted(self._files.known - recovery.seen, reverse=True):
            self._slots.add(number)
        if self._health.writable:
            self._committer.barrier().done.wait(self.config.index_timeout)  # the first generations
        self._keeper.start()
        self._scrubber.start()
        self._recovered = True

    # --- namespaces ------------------------------------------------------------------------------------------

    def open_namespace(self, canonical: bytes) -> int:
        """This tier's number of a namespace, which entries carry. Durable before any entry of it is."""
        known, new = self.namespace_table.open(canonical)
        if new:
            self._committer.meta(Meta(NAMESPACES, known.number.to_bytes(2, "big"), canonical))
        return known.number

    def retire_namespace(self, number: int) -> None:
        """A namespace is gone: once that is durable, a restart ignores its entries, freed or not."""
        self.namespace_table.retire(number)
        self._committer.meta(Meta(NAMESPACES, number.to_bytes(2, "big"), b""))

    def drop_namespace(self, number: int) -> None:
        """Its number may be given out again. Free its slots first."""
        if not self.namespace_table.retired(number):
            self.retire_namespace(number)
        self.namespace_table.drop(number)

    def namespaces(self) -> dict[int, bytes]:
        """Number and canonical form of the namespaces that this tier holds."""
        return self.namespace_table.all()

    # --- slots -----------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        return self.config.capacity_bytes

    @property
    def accepting(self) -> bool:
        """Whether writes have a chance: healthy, and not too much waits for the index."""
        return self._recovered and self._health.writable and self._committer.backlog < self.config.max_backlog

    @property
    def readable(self) -> bool:
        """Whether reads have a chance; without one a failed read says nothing about a block."""
        return self._health.readable

    @property
    def growing(self) -> bool:
        """A slot that is not to be had now may come without anything being freed."""
        return bool(self._slots.pooled()) or self._keeper.growing

    def shortage(self, high: float, low: float) -> int:
        """Slots to free to reach ``low`` when more than ``high`` of them are used and no segment can be added; or 0."""
        share = self._slots.share_in_use
        if not self.accepting or self.growing or share <= high:
            return 0
        return max(1, int(self._slots.in_use * (share - low) / share))

    def allocate(self, slot_bytes: int, chunks: int, count: int) -> Slots:
        slots = self._slots.allocate(slot_bytes, chunks, count if self.accepting else 0)
        if len(slots.slots) < count and self._recovered:
            self._keeper.kick()
            self._committer.kick()
        return slots

    @property
    def slots(self) -> SlotTable:
        """Which segment serves which slot size, for who reclaims them."""
        return self._slots

    def barrier(self) -> Barrier:
        """Commits soon; set once everything asked for so far is durable, or failed (``reason``)."""
        return self._committer.barrier()

    def commit_soon(self) -> None:
        """Somebody waits for what was written to be durable, or for freed slots."""
        self._committer.kick()

    def free(self, slots: SlotArray) -> None:
        self._committer.remove(slots)

    def free_bad(self, slots: SlotArray) -> None:
        """Like ``free`` for slots that the disk failed to read: they are not given out again."""
        self._committer.remove(slots, bad=True)

    def forget(self, slots: SlotArray) -> None:
        self._committer.forget(slots)

    def stamp(self, slots: SlotArray, stamp: int) -> None:
        """Notes the last use of slots, in seconds since the epoch; it orders eviction after a restart."""
        self._committer.stamp(slots, stamp)

    # --- whole blocks ----------------------------------------------------------------------------------------

    def persist(self, entries: Entries, sources: Sequence[memoryview]) -> Ticket:
        """Writes blocks (``sources``: contiguous bytes of each, valid until written) and commits their entries. Never
        raises for the disk: the ticket has the outcome of each. Raises InvalidArgument when columns disagree."""
        ticket, sums = self._ticket(entries)
        flat = [source.cast("B") for source in sources]
        if [len(source) for source in flat] != entries.lengths.tolist():
            raise InvalidArgument("the sources do not have the lengths that their entries say")
        self._mover.write(ticket, flat, sums)
        return ticket

    def fetch(self, wants: Sequence[Want], window: int = 0) -> Iterator[Fetched]:
        """Reads and checks blocks, pipelined, in order. A failed check is a counted reason, not an error."""
        for want in wants:
            _, cut = self.namespace_table.cut(want.namespace, want.part)
            if want.into.nbytes != cut.length:
                raise InvalidArgument(f"a part of {cut.length} bytes does not fit a buffer of {want.into.nbytes}")
        flat = [want._replace(into=want.into.cast("B")) for want in wants]
        return self._mover.fetch(flat, window or self.config.read_window)

    # --- Tier: bytes and entries apart -----------------------------------------------------------------------

    def record(self, entries: Entries) -> None:
        ticket, sums = self._ticket(entries)
        self._mover.write_trailers(ticket, sums)

    def write(self, transfers: Sequence[Transfer]) -> None:
        self._run(Lane.WRITE, transfers, write_range)

    def read(self, transfers: Sequence[Transfer]) -> None:
        self._run(Lane.READ, transfers, read_range)

    def checksums(self, slots: SlotArray, chunks: range) -> U64Array:
        """Reads the trailers. Raises OSError, and ChecksumMismatch when one is damaged."""
        out = np.zeros((len(slots), len(chunks)), np.uint64)
        index = self._committer.index
        if index is None:
            raise OSError(errno.EIO, "the NVMe index process is not there")
        entries = np.frombuffer(index.get(slots.astype(">u4").tobytes()), ENTRY)
        found = {int(entry["slot"]): entry for entry in entries}

        def job(bounce: Bounce) -> None:
            for row, slot in enumerate(slots.tolist()):
                entry = found.get(slot)
                trailer = entry is not None and load_trailer(
                    self._files, bounce, slot, int(entry["length"]), int(entry["chunks"])
                )
                if not trailer:
                    raise ChecksumMismatch(f"NVMe slot {slot} has no valid trailer")
                out[row] = trailer.sums[chunks.start : chunks.stop]

        run_all(self._pool, Lane.READ, [job])
        return out

    def sync(self) -> None:
        """Raises OSError when something recorded since the last sync did not become durable."""
        with self._tickets_lock:
            tickets = list(self._tickets)
        for ticket in tickets:
            ticket.wait_written(self.config.index_timeout)
        barrier = self._committer.barrier()
        if not barrier.done.wait(self.config.index_timeout) or barrier.reason:
            raise OSError(errno.EIO, f"the NVMe tier is not synced: {barrier.reason or self._health.health.reason}")
        with self._tickets_lock:
            failed, self._failed = self._failed, ""
        if failed:
            raise OSError(errno.EIO, f"the NVMe tier is not synced: {failed}")

    def _run(
        self,
        lane: Lane,
        transfers: Sequence[Transfer],
        move: Callable[[SegmentFiles, Bounce, int, int, memoryview], None],
    ) -> None:
        def job(transfer: Transfer) -> Callable[[Bounce], None]:
            slot, offset, buffer = transfer
            return lambda bounce: move(self._files, bounce, slot, offset, buffer.cast("B"))

        if lane is Lane.WRITE and not self._health.writable:
            raise OSError(errno.EROFS, self._health.health.reason, os.fspath(self.config.directory))
        try:
            run_all(self._pool, lane, list(map(job, transfers)))
        except OSError as error:
            self._health.io_error(error, write=lane is Lane.WRITE)
            raise

    def _ticket(self, entries: Entries) -> tuple[Ticket, list[U64Array]]:
        """The packed entries of a batch and the checksums of each."""
        bounds = np.cumsum(entries.chunks, dtype=np.int64)
        sums = np.split(entries.checksums, bounds[:-1]) if len(entries) else []
        packed: EntryArray = np.zeros(len(entries), ENTRY)
        for name, column in (
            ("slot", entries.slots), ("generation", entries.generations), ("key", entries.keys),
            ("parent", entries.parents), ("block", entries.blocks), ("length", entries.lengths),
            ("stamp", entries.stamps), ("namespace", entries.namespaces), ("importance", entries.importance),
            ("chunks", entries.chunks), ("part", entries.parts),
        ):  # fmt: skip
            packed[name] = column
        packed["granules"] = self._slots.granules(entries.slots)
        packed["digest"] = [digest(s, g) for s, g in zip(sums, entries.generations.tolist(), strict=True)]
        self.namespace_table.check(entries)
        ticket = Ticket(packed)
        with self._tickets_lock:
            self._tickets.add(ticket)
        ticket.on_settled(self._settled)
        return ticket, sums

    def _settled(self, ticket: Ticket) -> None:
        with self._tickets_lock:
            self._tickets.discard(ticket)
            self._failed = self._failed or ticket.reason

    # --- care ------------------------------------------------------------------------------------------------

    def _health_changed(self, health: Health) -> None:
        if self._recovered:
            self._keeper.kick()
        self._health_log.note(health)
        self._on_health(health)

    @property
    def health(self) -> Health:
        return self._health.health

    def on_bad_slot(self, callback: OnBad) -> None:
        """Who is told (slot, generation, reason) when the scrubber finds a slot damaged; it should free it."""
        self._scrubber.on_bad = callback

    def scrub(self) -> int:
        """One pass over all stored slots at full speed; gives how many failed."""
        return self._scrubber.scrub_all()

    def release(self) -> None:
        """Lets go of the directory soon, so that its file system can be unmounted and repaired; the tier takes it up
        again by itself once it is there and can be written. Until then all reads are misses."""
        self._keeper.release()

    def stat(self) -> TierStat:
        usage, status = self._slots.usage(), self._committer.status
        backed = len(self._files) * self._files.segment_bytes + status.file_bytes
        return TierStat(
            name=self.name, capacity_bytes=self.capacity, used_bytes=self._slots.used_bytes, backed_bytes=backed,
            segments=self.capacity // self._files.segment_bytes, segments_ready=len(self._files), slots=usage.slots,
            slots_used=usage.used, trouble=self.health.reason,
        )  # fmt: skip

    def details(self) -> NvmeStat:
        """What the tier did since it was opened."""
        did, status, committer = self._mover.counters, self._committer.status, self._committer
        return NvmeStat(
            did.reads, did.read_bytes, did.writes, did.written_bytes, did.scrubbed, did.scrubbed_bytes,
            dict(did.failures), committer.backlog, self._slots.limbo, self._slots.bad, status.entries,
            status.file_bytes, committer.restarts, committer.commits, self._files.direct,
        )  # fmt: skip

    def close(self) -> None:
        """Commits what is written, ends threads and index process, lets go of the directory."""
        self._scrubber.close()
        self._keeper.close()
        self._pool.close()
        if not self._recovered:  # nothing is known of what the index holds: nothing is written to it
            self._committer.detach()
        self._committer.close()
        self._files.detach()
        self._directory.unlock()
