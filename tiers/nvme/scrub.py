"""The scrubber: reads stored slots at a bounded rate and checks them, so that decay is found before a reader does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from kvstore.core.errors import Busy, Closed
from kvstore.tiers.nvme.blockio import CHECKSUM, IO, STALE, TRAILER, bytes_hold
from kvstore.tiers.nvme.files import SegmentFiles
from kvstore.tiers.nvme.format import read_trailer, round_up
from kvstore.tiers.nvme.health import HealthKeeper
from kvstore.tiers.nvme.pool import Bounce, IoPool, Lane
from kvstore.tiers.nvme.slots import SlotTable, State
from kvstore.tiers.nvme.transfer import Counters
from kvstore.tiers.tier import GRANULE

OnBad = Callable[[int, int, str], None]  # slot, generation, reason
_PASS_PAUSE = 60.0  # seconds between two passes


class Scrubber:
    """``rate`` bytes a second. ``on_bad`` is told of each slot that fails; who owns the slot then frees it."""

    def __init__(
        self, pool: IoPool, files: SegmentFiles, slots: SlotTable, health: HealthKeeper, counters: Counters, rate: int
    ) -> None:
        self._pool, self._files, self._slots = pool, files, slots
        self._health, self._counters, self._rate = health, counters, rate
        self.on_bad: OnBad = lambda slot, generation, reason: None
        self.passes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvme-scrub", daemon=True)

    def start(self) -> None:
        if self._rate:
            self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.scrub_all(self._rate)
            self._stop.wait(_PASS_PAUSE)

    def scrub_all(self, rate: int = 0) -> int:
        """One pass over all stored slots; gives how many failed. ``rate`` 0: as fast as it goes."""
        bad, due = 0, time.monotonic()
        for stored in self._slots.stored():
            granules = self._slots.granules(stored.slots)
            for slot, generation, size in zip(*(a.tolist() for a in (*stored, granules)), strict=True):
                if self._stop.is_set() or not self._health.readable:
                    return bad
                bad += self._one(slot, generation, size * GRANULE)
                due = self._throttle(due, size * GRANULE, rate)
        self.passes += 1
        return bad

    def _throttle(self, due: float, size: int, rate: int) -> float:
        if not rate:
            return due
        due = max(due, time.monotonic() - 1.0) + size / rate  # at most a second of unused time is caught up
        self._stop.wait(max(0.0, due - time.monotonic()))
        return due

    def _one(self, slot: int, generation: int, size: int) -> bool:
        reason = self._check(slot, generation, size)
        if reason and self._slots.state(slot, generation) is not State.STORED:
            return False  # freed meanwhile
        self._counters.scrub(size, reason)
        if reason:
            self.on_bad(slot, generation, reason)
        return bool(reason)

    def _check(self, slot: int, generation: int, size: int) -> str:
        done: SimpleQueue[str] = SimpleQueue()

        def job(bounce: Bounce) -> None:
            try:
                done.put(check_slot(self._files, bounce, slot, generation, size))
            except OSError as error:
                self._health.io_error(error, write=False)
                done.put(IO)
            except Exception:
                done.put(CHECKSUM)
                raise

        try:
            self._pool.submit(Lane.BACKGROUND, job)
        except (Busy, Closed):
            return ""
        return done.get()


def check_slot(files: SegmentFiles, bounce: Bounce, slot: int, generation: int, size: int) -> str:
    """Reads a whole slot; '' when its trailer and bytes agree with each other and with its address."""
    memory = bounce.get(size)
    files.read(slot, 0, [memory])
    trailer = None
    # the trailer takes the slot's last granules; its size follows from a length that only the trailer itself knows
    for at in range(size - GRANULE, 0, -GRANULE):
        trailer = read_trailer(memory[at:])
        if trailer is not None and round_up(trailer.length) == at:
            break
    else:
        return TRAILER
    if (trailer.slot, trailer.generation) != (slot, generation):
        return STALE
    return "" if bytes_hold(memory[: trailer.length], trailer) else CHECKSUM
