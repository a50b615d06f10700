"""Batches of reads and writes over the I/O pool: each block is checked where it arrives, results come in order."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from kvstore.core.errors import Busy, Closed
from kvstore.tiers.nvme.blockio import CHECKSUM, IO, STALE, TRAILER, bytes_hold, read_block, write_block, write_trailer
from kvstore.tiers.nvme.committer import Committer
from kvstore.tiers.nvme.files import SegmentFiles
from kvstore.tiers.nvme.format import EntryArray, Trailer
from kvstore.tiers.nvme.health import HealthKeeper
from kvstore.tiers.nvme.namespaces import NamespaceTable
from kvstore.tiers.nvme.pool import Bounce, IoPool, Lane
from kvstore.tiers.nvme.slots import SlotTable, State
from kvstore.tiers.nvme.ticket import Ticket
from kvstore.tiers.tier import U64Array

_JOB_BYTES = 512 << 10  # small blocks share a job up to this


class Want(NamedTuple):
    """A block to read. ``into``: writable contiguous bytes of the part's length, best aligned to 4 KiB."""

    slot: int
    generation: int
    namespace: int
    part: int
    key: bytes
    into: memoryview


class Fetched(NamedTuple):
    """Result of one read: ``reason`` is '' when ``into`` holds the checked bytes, whose chunk checksums are
    ``checksums``; else one of stale, trailer, checksum, io, busy, failed."""

    reason: str
    checksums: U64Array | None = None


class Counters:
    """What the tier did since it was opened. ``failures`` by reason."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reads = self.read_bytes = self.writes = self.written_bytes = 0
        self.scrubbed = self.scrubbed_bytes = 0
        self.failures: Counter[str] = Counter()

    def read(self, length: int, reason: str) -> None:
        with self._lock:
            self.reads += 1
            self.read_bytes += 0 if reason else length
            if reason:
                self.failures[reason] += 1

    def wrote(self, length: int) -> None:
        with self._lock:
            self.writes += 1
            self.written_bytes += length

    def scrub(self, length: int, reason: str) -> None:
        with self._lock:
            self.scrubbed += 1
            self.scrubbed_bytes += length
            if reason:
                self.failures[f"scrub_{reason}"] += 1


class BlockMover:
    """The tier's hands. Nothing here raises for what a disk does."""

    def __init__(
        self,
        pool: IoPool,
        files: SegmentFiles,
        slots: SlotTable,
        namespaces: NamespaceTable,
        committer: Committer,
        health: HealthKeeper,
    ) -> None:
        self._pool, self._files, self._slots = pool, files, slots
        self._namespaces, self._committer, self._health = namespaces, committer, health
        self.counters = Counters()

    # --- reads -------------------------------------------------------------------------------------------------

    def fetch(self, wants: Sequence[Want], window: int, lane: Lane = Lane.READ) -> Iterator[Fetched]:
        """Results in order, each as soon as it and those before it are there; ``window`` reads are under way at a
        time. Leaving early ends it: what is under way is waited for, so that no buffer is written afterwards."""
        arrived: SimpleQueue[tuple[int, Fetched]] = SimpleQueue()
        results: dict[int, Fetched] = {}
        submitted = received = 0
        try:
            for position in range(len(wants)):
                while submitted < min(len(wants), position + window):
                    self._submit_read(lane, wants[submitted], submitted, arrived)
                    submitted += 1
                while position not in results:
                    at, result = arrived.get()
                    received += 1
                    results[at] = result
                yield results.pop(position)
        finally:
            for _ in range(submitted - received):
                arrived.get()

    def _submit_read(self, lane: Lane, want: Want, at: int, arrived: SimpleQueue[tuple[int, Fetched]]) -> None:
        def job(bounce: Bounce) -> None:
            try:
                arrived.put((at, self.read_one(want, bounce)))
            except Exception:
                arrived.put((at, Fetched("failed")))
                raise

        try:
            self._pool.submit(lane, job)
        except (Busy, Closed):
            arrived.put((at, Fetched("busy")))

    def read_one(self, want: Want, bounce: Bounce) -> Fetched:
        """Reads and checks one block."""
        result = self._read_checked(want, bounce)
        self.counters.read(want.into.nbytes, result.reason)
        return result

    def _read_checked(self, want: Want, bounce: Bounce) -> Fetched:
        known, cut = self._namespaces.cut(want.namespace, want.part)
        if self._slots.state(want.slot, want.generation) is not State.STORED:
            return Fetched(STALE)
        try:
            trailer = read_block(self._files, bounce, want.slot, cut.count, want.into)
        except OSError as error:
            self._health.io_error(error, write=False)
            return Fetched(IO)
        if trailer is None:
            return Fetched(TRAILER)
        address = (trailer.slot, trailer.generation, trailer.root, trailer.key, trailer.part)
        if address != (want.slot, want.generation, known.root, want.key, want.part):
            return Fetched(STALE)
        return Fetched("", trailer.sums) if bytes_hold(want.into, trailer) else Fetched(CHECKSUM)

    # --- writes ------------------------------------------------------------------------------------------------

    def write(self, ticket: Ticket, sources: Sequence[memoryview], sums: Sequence[U64Array]) -> None:
        """Queues the writes of the ticket's entries, small ones several to a job."""
        start = size = 0
        for position, source in enumerate(sources):
            size += len(source)
            if size >= _JOB_BYTES or position + 1 == len(sources):
                at = slice(start, position + 1)
                self._queue_write(ticket, range(len(sources))[at], sums[at], sources[at])
                start, size = position + 1, 0

    def write_trailers(self, ticket: Ticket, sums: Sequence[U64Array]) -> None:
        """Queues the writes of the trailers alone: the bytes are in the slots already."""
        for start in range(0, len(sums), 64):
            at = slice(start, start + 64)
            self._queue_write(ticket, range(len(sums))[at], sums[at], [None] * 64)

    def _queue_write(
        self, ticket: Ticket, positions: range, sums: Sequence[U64Array], sources: Sequence[memoryview | None]
    ) -> None:
        ready = [at for at in positions if self._begin(ticket, at)]
        first = positions.start

        def job(bounce: Bounce) -> None:
            for at in ready:
                self._write_one(ticket, at, sums[at - first], sources[at - first], bounce)

        try:
            if ready:
                self._pool.submit(Lane.WRITE, job)
        except (Busy, Closed) as error:
            for at in ready:
                self._committer.write_failed(ticket, at, str(error))

    def _begin(self, ticket: Ticket, at: int) -> bool:
        slot, generation = int(ticket.entries[at]["slot"]), int(ticket.entries[at]["generation"])
        moved = self._slots.move(slot, generation, State.GIVEN, State.BUSY) or self._slots.move(
            slot, generation, State.STORED, State.BUSY
        )
        if not moved:
            self._committer.write_failed(ticket, at, f"slot {slot} in generation {generation} is not given out")
        return moved

    def _write_one(self, ticket: Ticket, at: int, sums: U64Array, source: memoryview | None, bounce: Bounce) -> None:
        trailer = self._trailer(ticket.entries, at, sums)
        try:
            if not self._health.writable:
                raise OSError(errno.EROFS, self._health.health.reason)
            if source is None:
                write_trailer(self._files, bounce, trailer)
            else:
                write_block(self._files, bounce, source, trailer)
                self.counters.wrote(len(source))
        except OSError as error:
            if self._health.writable:
                self._health.io_error(error, write=True)
            self._committer.write_failed(ticket, at, str(error), bad=error.errno == errno.EIO)
            return
        except Exception as error:
            self._committer.write_failed(ticket, at, repr(error))
            raise
        self._committer.written(ticket, at)

    def _trailer(self, entries: EntryArray, at: int, sums: U64Array) -> Trailer:
        entry = entries[at]
        number, part = int(entry["namespace"]), int(entry["part"])
        known, cut = self._namespaces.cut(number, part)
        return Trailer(
            slot=int(entry["slot"]), generation=int(entry["generation"]), length=int(entry["length"]), chunk=cut.chunk,
            block=int(entry["block"]), root=known.root, key=entry["key"].tobytes(), parent=entry["parent"].tobytes(),
            importance=int(entry["importance"]), part=part, sums=np.ascontiguousarray(sums, np.uint64),
        )  # fmt: skip


def run_all(pool: IoPool, lane: Lane, jobs: Sequence[Callable[[Bounce], None]]) -> None:
    """Runs jobs on the pool and waits; raises the first OSError."""
    done: SimpleQueue[Exception | None] = SimpleQueue()

    def wrapped(job: Callable[[Bounce], None]) -> Callable[[Bounce], None]:
        def run(bounce: Bounce) -> None:
            try:
                job(bounce)
                done.put(None)
            except Exception as error:
                done.put(error)

        return run

    queued = 0
    refused = ""
    for job in jobs:
        try:
            pool.submit(lane, wrapped(job))
        except (Busy, Closed) as full:
            refused = str(full)
            break
        queued += 1
    errors = [found for _ in range(queued) if (found := done.get()) is not None]
    if errors or refused:
        raise errors[0] if errors else OSError(errno.EAGAIN, refused)
