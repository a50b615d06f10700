"""Finds chains that fewer nodes hold than are to, and has them copied: sole copies first, the hottest first, within a
bandwidth. It looks after a node is gone or came back, after chains were given up, and from time to time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nsmallest

from kvstore.cluster.cell import Cell
from kvstore.cluster.copies import makes, worth
from kvstore.cluster.copy_targets import held_by
from kvstore.cluster.counts import Counts
from kvstore.cluster.membership import State
from kvstore.cluster.neighbours import Neighbour, View, own_room
from kvstore.cluster.pace import Pace
from kvstore.cluster.spread import Spread
from kvstore.cluster.stock import Leaf, Stock

FIRST = 5.0  # seconds after the start: until then little is known of the other nodes
SETTLED = 1.0  # seconds after nodes came or went
EVERY = 30.0  # seconds between looks
_STEP = 0.25
_SHARE = 10  # a look that takes long is made the more seldom: this much rest for its time
_BEHIND = 5.0  # seconds that what is known of a live node may be old
_ANYWAY = 60.0  # seconds after which it is looked all the same: a copy too many costs an answer
_MOST = 65_536  # chains found by one look; the next one finds the rest
_PIECE = 256  # chains looked at before others get a turn
_PATIENCE = 10.0  # seconds for a piece of a chain; more when it is large
_RATE = 32 << 20  # bytes a second that a large one takes at most


@dataclass(frozen=True, slots=True)
class Lack:
    """A chain that ``held`` other nodes hold, too few. ``nth``: chains that were used later."""

    held: int
    nth: int
    leaf: Leaf


class Mender:
    """``copies``: nodes that are to hold each block, 2 or more. ``missed``: chains were given up."""

    def __init__(
        self, stock: Stock, cell: Cell, view: View, spread: Spread, pace: Pace, counts: Counts, copies: int,
        missed: threading.Event, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._stock = stock
        self._cell = cell
        self._view = view
        self._spread = spread
        self._counts = counts
        self._others = copies - 1
        self._clock = clock
        self._pace = pace
        self._missed = missed
        self._due = clock() + FIRST
        self._nodes: frozenset[tuple[bytes, bytes]] = frozenset()
        self._thread = threading.Thread(target=self._run, name="mender", daemon=True)
        self.lacking = 0  # chains found by the last look and not copied yet

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._spread.stopping.wait(_STEP):
            try:
                self._step()
            except Exception:
                if self._spread.stopping.is_set():  # the store is being closed
                    return
                self._counts.surprised("lost copies could not be looked for")

    def _step(self) -> None:
        if self._changed() or self._missed.is_set():
            self._missed.clear()
            self._due = min(self._due, self._clock() + SETTLED)
        late = self._clock() - self._due
        if late >= 0 and (self._complete() or late > _ANYWAY):
            self._look()

    def _changed(self) -> bool:
        """Whether nodes came, went, or were started anew."""
        now = frozenset((one.member.node_id, one.member.boot_id) for one in self._view.now().values())
        before, self._nodes = self._nodes, now
        return before != now

    def _complete(self) -> bool:
        """Whether it is known what the live nodes hold."""
        live = [peer for peer in self._cell.peers() if peer.state is State.LIVE]
        return all(peer.lag is not None and peer.lag < _BEHIND for peer in live)

    def _look(self) -> None:
        began = self._clock()
        lacks = nsmallest(_MOST, self._lacks(), key=lambda one: (one.held, one.nth))
        self._counts.add("looks", 1)
        self._due = self._clock() + max(EVERY, _SHARE * (self._clock() - began))
        for nth, lack in enumerate(lacks):
            self.lacking = len(lacks) - nth
            if self._spread.stopping.is_set() or self._changed():
                self._due = self._clock() + SETTLED
                break
            self._mend(lack.leaf)
        else:
            self.lacking = 0

    def _lacks(self) -> Iterator[Lack]:
        known = self._view.now()
        for nth, leaf in enumerate(self._stock.leaves()):
            if nth % _PIECE == _PIECE - 1:
                self._spread.stopping.wait(0.001)
                known = self._view.now()
            holders = [n for n, _ in self._cell.index.holders_of(leaf.root, leaf.key) if n in known]
            own = own_room(self._cell.member)
            if len(holders) < self._others and makes(own, leaf.key, [known[n].room for n in holders]):
                yield Lack(len(holders), nth, leaf)

    def _mend(self, leaf: Leaf) -> None:
        """Piece by piece, so that the bandwidth is kept also within a long chain."""
        chain = self._stock.chain(leaf.handle, leaf.key)
        if chain is None:
            return
        have, idle = self._spread.held(chain), self._stock.idle(leaf.handle, leaf.key)

        def admits(node: Neighbour, size: int) -> bool:
            return worth(size, idle, node.room.free_bytes, node.eviction_age)

        step = max(1, self._pace.burst // max(1, chain.block_bytes))
        while (reached := held_by(have.values(), self._others)) < chain.blocks:
            piece = chain.first(min(reached + step, chain.blocks))
            if not self._pace.allows((piece.blocks - reached) * chain.block_bytes):
                return
            until = self._clock() + _PATIENCE + piece.blocks * chain.block_bytes / _RATE
            if self._spread.to(piece, self._others, have, until, lambda: True, admits) < piece.blocks:
                self._counts.add("mend_failed", 1)
                return
        self._counts.add("mended", 1)
