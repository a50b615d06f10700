"""The bounded I/O pool: a few threads, each with its own aligned bounce memory, and lanes by urgency."""

from __future__ import annotations

import logging
import mmap
import threading
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

import numpy as np

from kvstore.core.errors import Busy, Closed
from kvstore.tiers.nvme.format import round_up
from kvstore.tiers.tier import GRANULE

log = logging.getLogger(__name__)


class Lane(IntEnum):
    """Urgency of a job. The first thread of a pool prefers writes, so that readers never starve them."""

    READ = 0
    WRITE = 1
    BACKGROUND = 2


class Bounce:
    """Page-aligned memory of one I/O thread; grows to the largest piece asked for and stays."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16 * GRANULE)

    def get(self, length: int) -> memoryview:
        """``length`` bytes, aligned; valid until the thread's next ``get``."""
        if length > len(self._memory):
            self._memory = mmap.mmap(-1, round_up(length))
        return memoryview(self._memory)[:length]


Job: TypeAlias = Callable[[Bounce], None]  # must not raise: it reports its own errors


class IoPool:
    """``threads`` threads; ``depth`` jobs may wait in each lane."""

    def __init__(self, threads: int, depth: int, name: str = "nvme-io") -> None:
        self._depth = depth
        self._lanes: tuple[deque[Job], ...] = tuple(deque() for _ in Lane)
        self._ready = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(i == 0 and threads > 1,), name=f"{name}-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, lane: Lane, job: Job) -> None:
        """Queues a job. Raises Busy when the lane is full and Closed after ``close``."""
        with self._ready:
            if self._closed:
                raise Closed("the NVMe tier is closed")
            if len(self._lanes[lane]) >= self._depth:
                raise Busy(f"{self._depth} NVMe {lane.name.lower()} jobs are waiting; try later, or raise queue_depth")
            self._lanes[lane].append(job)
            self._ready.notify()

    def waiting(self) -> tuple[int, ...]:
        """Jobs waiting in each lane."""
        return tuple(map(len, self._lanes))

    def close(self) -> None:
        """Runs what is queued, then ends the threads."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, writes_first: bool) -> None:
        bounce = Bounce()
        read, write, background = self._lanes
        order = (write, read, background) if writes_first else (read, write, background)
        while True:
            with self._ready:
                while not any(order):
                    if self._closed:
                        return
                    self._ready.wait()
                job = next(lane for lane in order if lane).popleft()
            try:
                job(bounce)
            except Exception:
                log.exception("an NVMe job failed: this is a bug")


def aligned(buffer: memoryview) -> bool:
    """Whether O_DIRECT takes the start of this buffer."""
    return not np.frombuffer(buffer, np.uint8).ctypes.data % GRANULE
