"""The commit thread: syncs data, then commits its entries to the index, then tells who waits. In that order.

It owns the index process: when that dies, entries wait here (bounded, since writes stop) and are sent again after
the restart; sending twice does no harm.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable

import numpy as np

from kvstore.tiers.nvme.batch import Barrier, Batch, packed, release, settle, slots_of, stamped
from kvstore.tiers.nvme.files import SegmentFiles
from kvstore.tiers.nvme.format import seal
from kvstore.tiers.nvme.health import Cause, HealthKeeper
from kvstore.tiers.nvme.index import IndexFailed, IndexGone, IndexProcess, IndexStatus, Meta
from kvstore.tiers.nvme.index_wire import SETTINGS
from kvstore.tiers.nvme.slots import GENERATION_WINDOW, SlotTable, State
from kvstore.tiers.nvme.ticket import Outcome, Ticket
from kvstore.tiers.tier import SlotArray

log = logging.getLogger(__name__)
GENERATION_KEY = b"generation"
_RESTART_FIRST, _RESTART_MOST = 0.1, 5.0  # seconds of back-off


class Committer:
    """Queue of index changes and the thread that makes them durable."""

    def __init__(
        self,
        files: SegmentFiles,
        slots: SlotTable,
        health: HealthKeeper,
        start_index: Callable[[], IndexProcess],
        interval: float,
        entries: int,
    ) -> None:
        self._files, self._slots, self._health = files, slots, health
        self._start_index = start_index
        self._interval, self._entries = interval, entries
        self._changed = threading.Condition()
        self._queue = Batch()
        self._carry: Batch | None = None  # synced, but the index died before it answered
        self._oldest = 0.0
        self._kicked = self._stopping = self._detached = False
        self._retry_at, self._backoff = 0.0, _RESTART_FIRST
        self.index: IndexProcess | None = None
        self.status = IndexStatus(0, 0, 0)
        self.restarts = self.commits = 0
        self._started = threading.Event()
        # the kernel ends the index process with the thread that started it: this one, which lives as long as the tier
        self._thread = threading.Thread(target=self._run, name="nvme-commit", daemon=True)
        self._thread.start()
        self._started.wait()

    # --- queueing: any thread, quick ---------------------------------------------------------------------------

    def written(self, ticket: Ticket, position: int) -> None:
        """The bytes of one entry are written: sync and commit it."""
        entry = ticket.entries[position]
        slot, generation = int(entry["slot"]), int(entry["generation"])
        with self._changed:
            if self._slots.move(slot, generation, State.BUSY, State.STORED):
                ticket.written(position)
                self._queue.written.append((ticket, position))
                self._queue.forgotten.discard(slot)
                self._added()
                return
        self.write_failed(ticket, position, "freed while it was written")

    def write_failed(self, ticket: Ticket, position: int, reason: str, bad: bool = False) -> None:
        """The bytes of one entry could not be written."""
        entry = ticket.entries[position]
        slot, generation = int(entry["slot"]), int(entry["generation"])
        with self._changed:
            if self._slots.move(slot, generation, State.DOOMED, State.LIMBO):
                self._queue.removed.append(np.array([slot], np.uint32))
                self._added()
            else:
                self._slots.move(slot, generation, State.BUSY, State.BAD if bad else State.GIVEN)
        ticket.settle([position], Outcome.FAILED, reason)

    def remove(self, slots: SlotArray, bad: bool = False) -> None:
        """Freed slots: removes their entries, then gives the slots out again."""
        with self._changed:
            now = self._slots.retire(slots, bad)
            self._queue.removed.append(now)
            if len(now) != len(slots):  # bad ones: their entries go, they stay
                self._queue.forgotten.update(set(slots.tolist()) - set(now.tolist()))
            self._added()

    def forget(self, slots: SlotArray) -> None:
        """Removes entries; the slots stay given out."""
        with self._changed:
            self._slots.forget(slots)
            self._queue.forgotten.update(slots.tolist())
            self._added()

    def disown(self, slots: SlotArray) -> None:
        """Removes entries of slots that are free; those written anew meanwhile stay."""
        with self._changed:
            self._queue.forgotten.update(slots.tolist())

    def stamp(self, slots: SlotArray, stamp: int) -> None:
        """Notes the last use of slots in their entries; of no hurry, and lost in a crash."""
        with self._changed:
            self._queue.stamps.update(dict.fromkeys(slots.tolist(), stamp))
            self._added()

    def meta(self, meta: Meta) -> None:
        """Goes into the same commit as whatever is queued after it, or an earlier one."""
        with self._changed:
            self._queue.metas.append(meta)
            self._added()

    def note(self, notes: dict[bytes, bytes]) -> None:
        """Settings by key, b"" to forget one; the last value counts."""
        with self._changed:
            self._queue.notes.update(notes)
            self._added()

    def barrier(self) -> Barrier:
        """Commits soon; the barrier is set once everything queued so far is durable or failed."""
        barrier = Barrier()
        with self._changed:
            self._queue.barriers.append(barrier)
            self._kicked = True
            self._changed.notify()
        return barrier

    def kick(self) -> None:
        """Commits soon."""
        with self._changed:
            self._kicked = True
            self._changed.notify()

    @property
    def backlog(self) -> int:
        """Changes that are not durable yet."""
        return len(self._queue) + len(self._carry or ())

    def _added(self) -> None:
        if not self._oldest:
            self._oldest = time.monotonic()
            self._changed.notify()
        if len(self._queue.written) >= self._entries:
            self._changed.notify()

    # --- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._restart_index()
        self._started.set()
        while True:
            with self._changed:
                if self._stopping:
                    break
                if not self._due():
                    self._changed.wait(self._pause())
                    continue
            self._step()
        for _ in range(2):  # what an index process left behind, then the queue
            self._step()
        self._end()

    def _due(self) -> bool:
        index = self.index  # another thread may let go of it
        if self._detached or (index is None and time.monotonic() < self._retry_at):
            return False
        if index is None or not index.alive:
            return True
        if time.monotonic() < self._retry_at:
            return False
        waiting = len(self._queue.written) >= self._entries or (
            self._oldest > 0 and time.monotonic() - self._oldest >= self._interval
        )
        return not self._blocked() and (self._kicked or waiting or self._carry is not None)

    def _blocked(self) -> bool:
        """Nothing can be committed now, however long one waits."""
        index = self.index
        return self._detached or (index is not None and index.hello.readonly)

    def _pause(self) -> float:
        now = time.monotonic()
        if self._retry_at > now:
            return self._retry_at - now
        waits = self._oldest > 0 and not self._blocked()
        return max(0.001, self._oldest + self._interval - now) if waits else 1.0

    def _step(self) -> None:
        """One commit, starting the index process first when it is not there."""
        index = self.index
        if index is not None and not index.alive:
            self._lost_index(index, "the index process died")
            index = None
        if self._detached or (index is None and not self._restart_index()) or self._blocked():
            return
        batch = self._take()
        try:
            if not batch.synced:
                self._sync(batch)
            self._commit(batch)
        except Exception as error:
            log.exception("a commit of the NVMe tier failed: this is a bug")
            self._give_up(batch, repr(error))

    def _take(self) -> Batch:
        if self._carry is not None:
            batch, self._carry = self._carry, None
            return batch
        with self._changed:
            batch, self._queue = self._queue, Batch()
            self._oldest, self._kicked = 0.0, False
        return batch

    def _sync(self, batch: Batch) -> None:
        """Syncs the segments that the batch wrote to; entries of those that fail are failed."""
        batch.synced = True
        if not batch.written:
            return
        slots = slots_of(batch.written)
        failed = self._files.sync(self._slots.segments_of(slots))
        for error in failed.values():
            self._health.io_error(error, write=True)
        if failed:
            lost = np.isin(slots // self._slots.segment_granules, list(failed))
            batch.fail(lost.tolist(), f"sync failed: {next(iter(failed.values()))}")

    def _commit(self, batch: Batch) -> None:
        puts, removed, limit, index = packed(batch.written), batch.removals(), self._next_limit(), self.index
        metas = batch.metas + [Meta(SETTINGS, key, value) for key, value in batch.notes.items()]
        metas += [Meta(SETTINGS, GENERATION_KEY, str(limit).encode())] if limit else []
        try:
            if index is None:
                raise IndexGone("the disk is let go of")
            if len(puts) or len(removed) or metas or batch.stamps:
                puts = np.concatenate([stamped(index, batch.stamps), puts])
                self.status = index.commit(seal(puts).tobytes(), removed.astype(">u4").tobytes(), metas)
                self.commits += 1
        except IndexGone as error:
            self._unanswered(batch, index, str(error))
        except IndexFailed as error:
            self._refused(batch, index, error)
        else:
            self._committed(batch, limit)

    def _committed(self, batch: Batch, limit: int) -> None:
        self._backoff, self._retry_at = _RESTART_FIRST, 0.0
        if limit:
            self._slots.generation_limit = limit
        if batch.removed:
            self._slots.release(np.concatenate(batch.removed))
        self._health.clear(Cause.INDEX, Cause.INDEX_FULL)
        settle(batch.written, Outcome.DURABLE)
        release(batch.barriers)

    def _refused(self, batch: Batch, index: IndexProcess | None, error: IndexFailed) -> None:
        """A full disk: removals wait for space. Anything else: the process ends, and the batch is sent again."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            self._health.io_error(OSError(error.errno, str(error)), write=True)
            self._unanswered(batch, index, f"index: {error}")
            return
        self._health.trouble(Cause.INDEX_FULL, f"index: {error}")
        self._give_up(batch, str(error))

    def _unanswered(self, batch: Batch, index: IndexProcess | None, reason: str) -> None:
        """Whether it was committed is not known: it is sent again, unless the disk was let go of."""
        with self._changed:
            keep = not self._detached
            self._carry = batch if keep else None
        if keep:
            self._lost_index(index, reason)
        else:
            self._give_up(batch, reason)

    def _give_up(self, batch: Batch, reason: str) -> None:
        with self._changed:
            batch.requeue(self._queue)
        batch.give_up(reason)
        self._back_off()

    def _next_limit(self) -> int:
        """The generation up to which slots may be given out after this commit; 0: no need to raise it."""
        now = self._slots.generation
        return now + GENERATION_WINDOW if now + GENERATION_WINDOW // 2 > self._slots.generation_limit else 0

    # --- the index process -------------------------------------------------------------------------------------

    def _restart_index(self) -> bool:
        try:
            index = self._start_index()
        except (IndexGone, IndexFailed, OSError) as error:
            self._lost_index(None, str(error))
            return False
        with self._changed:
            self.index = None if self._detached else index
        if self.index is None:  # let go of while it started
            index.kill()
            return False
        self.status = index.hello
        if index.hello.readonly:
            self._health.trouble(Cause.READ_ONLY, "the index can only be read")
        self._health.clear(Cause.INDEX)
        return True

    def _lost_index(self, index: IndexProcess | None, reason: str) -> None:
        self._health.trouble(Cause.INDEX, reason)
        if index is not None:
            index.kill()
            self.index = None
            self.restarts += 1
        self._back_off()

    def _back_off(self) -> None:
        self._retry_at = time.monotonic() + self._backoff
        self._backoff = min(2 * self._backoff, _RESTART_MOST)

    # --- letting go and ending ---------------------------------------------------------------------------------

    def detach(self) -> None:
        """The disk is dead: ends the index process and fails what waits. Removals are kept for later."""
        with self._changed:
            self._detached = True
            index, self.index = self.index, None
            lost, self._carry = self._carry or Batch(), None
            waiting, self._queue.written = self._queue.written, []
            barriers, self._queue.barriers = self._queue.barriers, []
            lost.written, lost.barriers = lost.written + waiting, lost.barriers + barriers
            lost.requeue(self._queue)
        if index is not None:
            index.kill()
        lost.give_up("the disk failed")

    def attach(self) -> None:
        """The disk is back: the thread starts the index process again, and bad slots are tried again."""
        with self._changed:
            self._queue.removed.append(self._slots.forgive())
            self._detached = False
            self._retry_at, self._backoff, self._kicked = 0.0, _RESTART_FIRST, True
            self._changed.notify()

    def close(self) -> None:
        """Commits what can be committed, fails the rest, ends the index process."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _end(self) -> None:
        if self.index is not None and not self.index.hello.readonly:
            try:  # an orderly end: no generation is skipped at the next start
                generation = Meta(SETTINGS, GENERATION_KEY, str(self._slots.generation).encode())
                self.index.commit(b"", b"", [generation])
            except (IndexGone, IndexFailed):
                pass
        if self.index is not None:
            self.index.close()
            self.index = None
        self.detach()
