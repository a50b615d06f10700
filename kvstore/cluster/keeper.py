"""Keeps as many copies of each block as are to be: of what is put here at once, of what lost copies again.

A put that asks for it waits for its copies on its own thread, and is told what their targets said, never what the index
supposes. Other new blocks are owed: they are copied soon by threads of the keeper. What could not be, and what lost a
copy since, is found by the mender's scans.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvstore.cluster.cell import Cell
from kvstore.cluster.copier import Copier
from kvstore.cluster.counts import Counts
from kvstore.cluster.neighbours import View
from kvstore.cluster.owed import Owed, OwedQueue
from kvstore.cluster.spread import Alive, Spread
from kvstore.cluster.stock import Chain, Stock

WAIT = 5.0  # seconds that a put without a deadline waits
WAITING = 64  # puts that wait at a time; further ones are told at once that they are not replicated
OWED = 4096  # chains that are owed copies and wait; further ones are left to a scan
WORKERS = 2
_OWED_SECONDS = 10.0  # for one chain; more when it is large
_RATE = 32 << 20  # bytes a second that a large one takes at most


@dataclass(slots=True)
class _Flight:
    """A chain on its way for a put that waits. ``reached``, once ``done``: blocks that are replicated."""

    done: threading.Event = field(default_factory=threading.Event)
    reached: int = 0


class Keeper:
    """``copies``: nodes that are to hold each block, this one included, 2 or more. ``start`` once, ``stop`` once."""

    def __init__(
        self, stock: Stock, cell: Cell, copier: Copier, copies: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stock = stock
        self._clock = clock
        self._others = copies - 1
        self.counts = Counts()
        self.view = View(cell.peers, cell.taken.by_node, clock)
        self.spread = Spread(stock, cell, self.view, copier, self.counts.add, clock)
        self._places = threading.BoundedSemaphore(WAITING)
        self._news = threading.Condition()  # guards what follows
        self._queue = OwedQueue(OWED)
        self._flights: dict[tuple[int, bytes], _Flight] = {}
        self.missed = threading.Event()  # chains were given up: a scan is due
        self._threads = [
            threading.Thread(target=self._serve, name=f"owed-{nth}", daemon=True) for nth in range(WORKERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Puts that wait are told what they have. The copier's calls must have ended, or be ended next."""
        self.spread.stopping.set()
        with self._news:
            self._news.notify_all()

    # --- puts that wait ------------------------------------------------------------------------------------

    def replicated(self, handle: int, key: bytes, deadline: float | None, alive: Alive) -> int:
        """How many leading blocks of a chain that was put here as many nodes hold as are to, at the deadline
        (time.monotonic) or before. What is not held by then is owed."""
        until = self._clock() + WAIT if deadline is None else deadline
        chain = self._stock.chain(handle, key)
        if chain is None:
            return 0
        if not self._places.acquire(blocking=False):
            self.counts.add("busy", 1)
            reached = 0
        else:
            try:
                reached = self._awaited(chain, until, alive)
            finally:
                self._places.release()
        if reached < chain.blocks:
            self.counts.add("unreplicated_blocks", chain.blocks - reached)
            self.owe(handle, chain.key(chain.blocks - 1), b"", chain.blocks - reached)
        return reached

    def _awaited(self, chain: Chain, until: float, alive: Alive) -> int:
        """Many who wait for the same chain have it copied once."""
        name = (chain.handle, chain.key(chain.blocks - 1))
        while True:
            with self._news:
                flight = self._flights.get(name)
                mine = flight is None
                if flight is None:
                    flight = self._flights[name] = _Flight()
            if mine:
                return self._lead(name, flight, chain, until, alive)
            if not flight.done.wait(max(0.0, until - self._clock())) or flight.reached >= chain.blocks:
                return min(flight.reached, chain.blocks)
            if self._clock() >= until or not alive():  # its leader had less time, or gave up
                return min(flight.reached, chain.blocks)

    def _lead(self, name: tuple[int, bytes], flight: _Flight, chain: Chain, until: float, alive: Alive) -> int:
        try:
            flight.reached = self.spread.to(chain, self._others, {}, until, alive, sure=True)
            return flight.reached
        finally:
            with self._news:
                del self._flights[name]
            flight.done.set()

    # --- copies that are owed ------------------------------------------------------------------------------

    def owe(self, handle: int, key: bytes, parent: bytes, new: int) -> None:
        """A chain has ``new`` blocks here, at its end, and is copied soon. ``parent``: its last block before those."""
        size = new * self._stock.block_bytes(handle)
        with self._news:
            if self._queue.add(handle, key, parent, new, size, self._clock()):
                self._news.notify()
            else:
                self.missed.set()

    @property
    def owed(self) -> tuple[int, int, int, float]:
        """Chains that wait for copies, blocks and bytes that are new of them, seconds that one waits the longest."""
        with self._news:
            queue = self._queue
            return len(queue), queue.blocks, queue.size, queue.oldest(self._clock())

    @property
    def dropped(self) -> int:
        """Chains for which there was no room to wait."""
        return self._queue.dropped

    def _serve(self) -> None:
        while (one := self._next()) is not None:
            try:
                self._pay(one)
            except Exception:
                if not self.spread.stopping.is_set():  # else the store is being closed
                    self.counts.surprised("a chain could not be copied")

    def _next(self) -> Owed | None:
        with self._news:
            while not self.spread.stopping.is_set():
                now = self._clock()
                found = self._queue.take(now)
                if found is not None:
                    return found
                self._news.wait(self._queue.wait(now))
        return None

    def _pay(self, one: Owed) -> None:
        chain = self._stock.chain(one.handle, one.key)
        if chain is None:  # it went again
            return
        until = self._clock() + _OWED_SECONDS + chain.blocks * chain.block_bytes / _RATE
        reached = self.spread.to(chain, self._others, self.spread.held(chain), until, lambda: True)
        if reached >= chain.blocks:
            self.counts.add("owed_done", 1)
            return
        with self._news:
            again = self._queue.again(one, self._clock())
        if not again:
            self.counts.add("owed_missed", 1)
            self.missed.set()
