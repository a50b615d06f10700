"""The keeper thread: makes segments ahead of demand, probes what failed, lets go of a dead disk and takes it back."""

from __future__ import annotations

import logging
import threading
import time

from kvstore.core.errors import ConfigError
from kvstore.tiers.nvme.committer import Committer
from kvstore.tiers.nvme.directory import NvmeDirectory
from kvstore.tiers.nvme.files import SegmentFiles
from kvstore.tiers.nvme.health import Cause, HealthKeeper, HealthLog
from kvstore.tiers.nvme.index import IndexFailed, IndexGone
from kvstore.tiers.nvme.slots import SlotTable

log = logging.getLogger(__name__)
INDEX_BASE = 512 << 10  # bytes of index file whatever it holds
INDEX_PER_SLOT = 256  # bytes: an entry, the slack of its page, and the copies that LMDB's commits make
_SPARE = 2  # segments made ahead of demand
_MOST_BACKOFF = 30.0  # seconds between probes of something that stays broken
_EVERY = 5.0  # seconds between looks when all is well
_CALM = 60.0  # seconds without trouble after which probing starts quick again


class Keeper:
    """``capacity`` bounds segments and index file together."""

    def __init__(
        self,
        directory: NvmeDirectory,
        files: SegmentFiles,
        slots: SlotTable,
        committer: Committer,
        health: HealthKeeper,
        capacity: int,
        probe_interval: float,
        health_log: HealthLog,
    ) -> None:
        self._directory, self._files, self._slots = directory, files, slots
        self._committer, self._health = committer, health
        self._capacity, self._first = capacity, probe_interval
        self._every, self._look_at, self._health_log = min(_EVERY, 10 * probe_interval), 0.0, health_log
        self._backoff, self._probe_at, self._calm_since = probe_interval, 0.0, 0.0
        self._reserved = 0  # slots that the index file has room for
        self._asked = 0  # slots that segments in use have, or were to have
        self._wake, self._release = threading.Event(), threading.Event()
        self._stopping = False
        slots.admit = self._admit
        self._thread = threading.Thread(target=self._run, name="nvme-keeper", daemon=True)

    def start(self) -> None:
        """First segment and index space now, the rest in the background."""
        self._asked = self._slots.usage().slots
        self._grow()
        self._thread.start()

    def kick(self) -> None:
        """Something changed: look now."""
        self._wake.set()

    def release(self) -> None:
        """Lets go of the directory at the next look, as of a dead disk."""
        self._release.set()
        self._wake.set()

    def close(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def growing(self) -> bool:
        """More segments can be made."""
        return self._next_segment() is not None and not self._health.has(Cause.DISK_FULL)

    # --- space -----------------------------------------------------------------------------------------------

    def _admit(self, slots: int) -> bool:
        # under the slot table's lock: no waiting; the thread makes room for the next attempt
        self._asked = max(self._asked, slots)
        if self._asked + self._headroom > self._reserved:
            self.kick()
        return slots <= self._reserved

    @property
    def _headroom(self) -> int:
        return self._slots.segment_granules  # two segments of the smallest slots, 4 KiB and a trailer

    def _grow(self) -> None:
        if not self._health.writable or self._health.has(Cause.DISK_FULL):
            return
        try:
            self._reserve_index()
            while self._slots.pooled() < _SPARE and (number := self._next_segment()) is not None:
                self._files.create(number)
                self._slots.add(number)
        except OSError as error:
            self._health.io_error(error, write=True)
        except IndexFailed as error:
            self._health.io_error(OSError(error.errno, str(error)), write=True)
        except IndexGone as error:
            log.warning("NVMe index: %s", error)

    def _reserve_index(self) -> None:
        """Disk space for the entries of two segments ahead, or at least of those that are asked for."""
        refused: IndexFailed | None = None
        for wanted in (self._asked + self._headroom, self._asked):
            if wanted <= self._reserved:
                return
            try:
                self._reserve(wanted, withdraw=wanted == self._asked)
            except IndexFailed as error:
                refused = error
        if refused is not None and self._asked > self._reserved:
            raise refused

    def _reserve(self, slots: int, withdraw: bool) -> None:
        """``withdraw``: smaller slots need a larger index, and get it for a segment that nobody uses."""
        index, size = self._committer.index, INDEX_BASE + INDEX_PER_SLOT * slots
        if index is None:
            return
        while size + len(self._files) * self._files.segment_bytes > self._capacity:
            number = self._slots.withdraw() if withdraw else None
            if number is None:
                return
            self._files.remove(number)
        self._committer.status = index.reserve(size)
        self._reserved = slots

    def _next_segment(self) -> int | None:
        index = max(self._committer.status.file_bytes, INDEX_BASE + INDEX_PER_SLOT * self._reserved)
        if (len(self._files) + 1) * self._files.segment_bytes + index > self._capacity:
            return None
        taken = self._files.known
        return next(number for number in range(len(taken) + 1) if number not in taken)

    # --- probes ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self._pause())
            self._wake.clear()
            self._look()
            self._grow()

    def _pause(self) -> float:
        return max(0.01, self._probe_at - time.monotonic()) if self._health.causes else self._every

    def _look(self) -> None:
        """Probes what is wrong, ever more rarely while it stays so."""
        now = time.monotonic()
        if self._release.is_set():
            self._release.clear()
            self._detach("released on request")
        self._health_log.note(self._health.health)
        if now >= self._look_at or not self._health.writable:
            self._look_at = now + self._every
            self._find_displaced()
        if not self._health.causes:
            self._calm_since = self._calm_since or now
            return
        if self._calm_since:  # new trouble; after a long calm, probing starts quick again
            self._backoff = self._first if now - self._calm_since > _CALM else self._backoff
            self._calm_since, self._probe_at = 0.0, now + self._backoff
        if now >= self._probe_at:
            self._probe()
            self._backoff = min(2 * self._backoff, _MOST_BACKOFF)
            self._probe_at = time.monotonic() + self._backoff

    def _find_displaced(self) -> None:
        """The directory is removed or replaced while the node runs: what is written to open files would be lost."""
        if self._health.readable and (what := self._directory.displaced() or self._files.displaced()):
            self._detach(f"the directory was removed or replaced: {what}", Cause.GONE)

    def _probe(self) -> None:
        if not self._health.readable:
            self._attach()
            return
        unwritable, unreadable = self._directory.can_write(), self._directory.can_read()
        if unwritable and unreadable:
            self._detach(f"{unwritable}; {unreadable}")
        elif not unwritable:
            if self._directory.readonly:
                self._detach("the file system was read-only at the start")  # descriptors must be opened anew
                self._attach()
                return
            self._health.clear(Cause.WRITE_IO, Cause.READ_ONLY, Cause.DISK_FULL)
            self._committer.kick()
        if not unreadable:
            self._health.clear(Cause.READ_IO)

    def _detach(self, reason: str, cause: Cause = Cause.DISK) -> None:
        """Closes everything below the directory, so that the file system can be unmounted and repaired."""
        self._health.trouble(cause, reason)
        log.error("NVMe tier: %s is let go of: %s", self._directory.path, reason)
        self._committer.detach()
        if self._files.detach():
            self._directory.unlock()

    def _attach(self) -> None:
        try:
            if not self._files.detach():
                return
            if self._directory.lock_fd < 0:
                self._directory.lock_again()
            if error := self._directory.can_write():
                raise error
            self._files.attach()
        except (OSError, ConfigError) as error:
            log.warning("NVMe tier: %s is still out of use: %s", self._directory.path, error)
            self._directory.unlock()
            return
        self._directory.readonly = False
        self._health.clear(*Cause)
        self._committer.attach()
        log.warning("NVMe tier: %s is back", self._directory.path)
