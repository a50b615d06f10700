"""What many read from this node gets copies beyond those owed, one at a time; and where room is short, copies beyond
those owed that nobody uses any more are given up."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable

from kvstore.cluster.cell import Cell
from kvstore.cluster.copies import HOT, Heat, extra_wanted, makes, surplus, worth
from kvstore.cluster.counts import Counts
from kvstore.cluster.membership import State
from kvstore.cluster.neighbours import Neighbour, View, own_room
from kvstore.cluster.pace import Pace
from kvstore.cluster.placement import primaries
from kvstore.cluster.spread import Spread
from kvstore.cluster.stock import Chain, Leaf, Stock
from kvstore.core.keys import KeyArray

STEP = 1.0  # seconds between looks at what is hot
COOL_EVERY = 30.0  # ... and at what has cooled
COOLED = 60.0  # seconds that a copy was not used here
_SAMPLE = 4  # of so many reads one is noted, as so many
_AT_ONCE = 8  # chains that get a copy after one look
_COLDEST = 4096  # chains looked at after one look at all
_PATIENCE, _RATE = 10.0, 32 << 20  # seconds for one chain, and bytes a second for what is large
_OWN = -1


class Warmth:
    """``copies``: nodes that are to hold each block. ``read`` may be called from any number of threads."""

    def __init__(
        self, stock: Stock, cell: Cell, view: View, spread: Spread, pace: Pace, counts: Counts, copies: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._stock = stock
        self._cell = cell
        self._view = view
        self._spread = spread
        self._pace = pace
        self._counts = counts
        self._copies = copies
        self._clock = clock
        self._reads = itertools.count(1)
        self._lock = threading.Lock()  # guards the heat
        self._heat = Heat()
        self._cool_at = clock() + COOL_EVERY
        self._thread = threading.Thread(target=self._run, name="warmth", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def read(self, handle: int, keys: KeyArray, first: int, end: int) -> None:
        """Blocks ``first`` to ``end`` of a chain were sent to somebody."""
        if next(self._reads) % _SAMPLE:
            return
        now = self._clock()
        with self._lock:
            for mark in marks(first, end):
                self._heat.read(_name(handle, keys[mark].tobytes()), now, float(_SAMPLE))

    def _run(self) -> None:
        while not self._spread.stopping.wait(STEP):
            try:
                self._warm()
                if self._clock() >= self._cool_at:
                    self._cool()
                    self._cool_at = self._clock() + COOL_EVERY
            except Exception:
                if self._spread.stopping.is_set():  # the store is being closed
                    return
                self._counts.surprised("extra copies could not be looked after")

    # --- more copies ---------------------------------------------------------------------------------------

    def _warm(self) -> None:
        """Long chains first: the short ones that are hot with them are their beginnings."""
        with self._lock:
            hot = self._heat.above(HOT, self._clock())
        found = [(chain, rate) for name, rate in hot if (chain := self._stock.chain(*_named(name))) is not None]
        begun: set[bytes] = set()
        made = 0
        for chain, rate in sorted(found, key=lambda one: -one[0].blocks):
            if chain.key(chain.blocks - 1) in begun or made == _AT_ONCE or self._spread.stopping.is_set():
                continue
            begun.update(chain.key(mark) for mark in marks(0, chain.blocks))
            made += self._give(chain, rate)

    def _give(self, chain: Chain, rate: float) -> bool:
        """One more copy, if this node sees it read that often: others with a copy are thought to see the same."""
        key, known = chain.key(chain.blocks - 1), self._live()
        rooms = [known[n].room for n in self._holders(chain.root, key, known)]
        total = 1 + len(rooms)
        extra = max(0, total - self._copies)
        if extra_wanted(rate * total, total - extra, extra) <= extra:
            return False
        if not makes(own_room(self._cell.member), key, rooms):
            return False
        size = chain.blocks * chain.block_bytes
        if not self._pace.allows(size):
            return False

        def admits(node: Neighbour, size: int) -> bool:
            return worth(size, 0.0, node.room.free_bytes, node.eviction_age)

        until = self._clock() + _PATIENCE + size / _RATE
        have = self._spread.held(chain)
        done = self._spread.to(chain, total, have, until, lambda: True, admits, owed=False) >= chain.blocks
        self._counts.add("extra_made", done)
        return done

    # --- fewer copies --------------------------------------------------------------------------------------

    def _cool(self) -> None:
        if not self._stock.pressed():
            return
        coldest = deque(self._stock.leaves(), _COLDEST)
        while coldest and not self._spread.stopping.is_set() and self._stock.pressed():
            leaf = coldest.pop()
            if self._stock.idle(leaf.handle, leaf.key) < COOLED:
                break
            self._give_up(leaf)

    def _give_up(self, leaf: Leaf) -> None:
        """Drops a chain that as many others hold as are to: by their own word, not by the index."""
        known = self._live()
        rooms = {n: known[n].room for n in self._holders(leaf.root, leaf.key, known)}
        rooms[_OWN] = own_room(self._cell.member)
        if _OWN not in surplus(leaf.key, rooms, rooms, self._copies, 0):
            return
        chain = self._stock.chain(leaf.handle, leaf.key)
        if chain is None:
            return
        stay = {room.node for room in primaries(leaf.key, list(rooms.values()), self._copies)}

        def admits(node: Neighbour, size: int) -> bool:
            return node.room.node in stay and not size

        until = self._clock() + 1.0
        if self._spread.to(chain, self._copies, {}, until, lambda: True, admits, sure=True) >= chain.blocks:
            self._counts.add("cooled_blocks", self._stock.drop(chain))

    # --- who holds it --------------------------------------------------------------------------------------

    def _live(self) -> dict[int, Neighbour]:
        return {n: one for n, one in self._view.now().items() if one.state is State.LIVE}

    def _holders(self, root: bytes, key: bytes, known: dict[int, Neighbour]) -> list[int]:
        return [n for n, _ in self._cell.index.holders_of(root, key) if n in known]


def marks(first: int, end: int) -> list[int]:
    """Blocks of a chain whose reads are counted, of those from ``first`` to ``end``: the last of each power of two. So
    what many chains share is found, however they go on, and not every block is counted."""
    return [mark for power in range(end.bit_length()) if first <= (mark := (1 << power) - 1) < end]


def _name(handle: int, key: bytes) -> bytes:
    return handle.to_bytes(4, "big") + key


def _named(name: bytes) -> tuple[int, bytes]:
    return int.from_bytes(name[:4], "big"), name[4:]
