"""Copying and checking parts, chunk by chunk; large batches are spread over two threads.

numpy's copy and xxhash release the GIL, so the second thread is a second core.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from kvstore.core.checksum import xxh3
from kvstore.transport.cancel import Cancel, current
from kvstore.transport.mapping import Bytes
from kvstore.transport.plan import Piece

_NEVER = Cancel()
SPREAD_BYTES = 4 << 20  # smaller batches are done before a second thread would have woken up
MASK = (1 << 64) - 1


def fetch(into: Bytes, source: Bytes, piece: Piece, seed: int, sums: Sequence[int], at: int) -> bool:
    """Copies a piece and checks what arrived against ``sums[at:]``. False when a chunk fails its check."""
    copy, view = np.copyto, memoryview(into)
    for start, end, chunks in piece.copies:
        copy(into[start:end], source[start:end])
        for first, last, index in chunks:
            if xxh3(view[first:last], (seed + index) & MASK) != sums[at]:
                return False
            at += 1
    return True


def place(into: Bytes, source: Bytes, piece: Piece, seed: int, sums: list[int], at: int) -> None:
    """Copies a piece and writes the checksums of its source to ``sums[at:]``."""
    copy, view = np.copyto, memoryview(source)
    for start, end, chunks in piece.copies:
        copy(into[start:end], source[start:end])
        for first, last, index in chunks:
            sums[at] = xxh3(view[first:last], (seed + index) & MASK)
            at += 1


def verify(view: memoryview, piece: Piece, seed: int, sums: Sequence[int], at: int) -> bool:
    """Whether a piece matches ``sums[at:]``."""
    return all(
        xxh3(view[first:last], (seed + index) & MASK) == sums[at + nth]
        for nth, (first, last, index) in enumerate(piece.chunks)
    )


def _nothing(item: int) -> bool:
    return False


class _Job:
    """Items handed out in order to whoever asks; ``failed`` is the first item that was not done."""

    def __init__(self, count: int, work: Callable[[int], bool], deadline: float) -> None:
        self._items = itertools.count()
        self._count = count
        self._work = work
        self._deadline = deadline
        self._cancel = current() or _NEVER
        self._lock = threading.Lock()
        self._closed = self._helping = False
        self._helped = threading.Event()
        self.failed = count
        self.late = False
        self.error: BaseException | None = None

    def run(self) -> None:
        count, work, deadline, clock, cancel = self._count, self._work, self._deadline, time.monotonic, self._cancel
        for item in self._items:
            if item >= count or item >= self.failed:
                return
            if clock() >= deadline or cancel.cancelled:
                self.stop(item, late=True)
            elif not work(item):
                self.stop(item)

    def stop(self, item: int, late: bool = False, error: BaseException | None = None) -> None:
        with self._lock:
            if item < self.failed:
                self.failed, self.late = item, late
            self.error = self.error or error

    def help(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._helping = True
        try:
            self.run()
        except BaseException as error:
            self.stop(-1, error=error)
        finally:
            self._helped.set()

    def close(self) -> None:
        """No helper may start any more; waits for one that did."""
        with self._lock:
            self._closed = True
        if self._helping:
            self._helped.wait()
        self._work = _nothing  # a helper that comes to this job later keeps no buffer alive meanwhile


def spread(count: int, size: int, work: Callable[[int], bool], deadline: float) -> tuple[int, bool]:
    """Does ``work(0)`` to ``work(count - 1)``, ``size`` bytes in all, until one returns False or the deadline passes.

    Returns how many leading items were done, and whether the deadline was what stopped it. When it returns (or
    raises what ``work`` raised), no thread touches the buffers any more.
    """
    if size < SPREAD_BYTES or count < 2 or not _HELPERS.available():
        return _alone(count, work, deadline)
    job = _Job(count, work, deadline)
    _HELPERS.call(job)
    try:
        job.run()
    except BaseException as error:
        job.stop(-1, error=error)
        raise
    finally:
        job.close()
    if job.error is not None:
        raise job.error
    return job.failed, job.late


def _alone(count: int, work: Callable[[int], bool], deadline: float) -> tuple[int, bool]:
    clock, cancel = time.monotonic, current() or _NEVER
    for item in range(count):
        if clock() >= deadline or cancel.cancelled:
            return item, True
        if not work(item):
            return item, False
    return count, False


class _Helpers:
    """The threads beside the caller's: one for each core but one, at most one."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._threads = 0
        self._wanted = min(1, len(os.sched_getaffinity(0)) - 1)
        self._lock = threading.Lock()

    def available(self) -> bool:
        return self._wanted > 0

    def call(self, job: _Job) -> None:
        if self._threads < self._wanted:
            self._start()
        self._jobs.put(job)

    def _start(self) -> None:
        with self._lock:
            while self._threads < self._wanted:
                threading.Thread(target=self._serve, name="kvstore-copy", daemon=True).start()
                self._threads += 1

    def _serve(self) -> None:
        while True:
            self._jobs.get().help()

    def after_fork(self) -> None:
        self.__init__()  # type: ignore[misc]


_HELPERS = _Helpers()
os.register_at_fork(after_in_child=_HELPERS.after_fork)
