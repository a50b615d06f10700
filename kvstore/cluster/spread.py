"""Has one chain copied to as many other nodes as are to hold it: from one target to the next, by a deadline."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from kvstore.cluster.copier import Copier
from kvstore.cluster.copy_targets import branch, held_by, preferred
from kvstore.cluster.member import Member
from kvstore.cluster.membership import State
from kvstore.cluster.neighbours import LONGEST, Backoffs, Neighbour, View, own_room
from kvstore.cluster.prefix_index import Holders
from kvstore.cluster.stock import Chain, Stock
from kvstore.core.errors import Busy, KVStoreError, NotServed
from kvstore.core.keys import KeyArray

PATIENCE = 1.0  # seconds that one target may take for a copy, and what its bytes take at this rate:
SLOWEST = 64 << 20  # bytes a second
_BUSY = 0.1  # seconds that a node is left alone that takes as many copies as it can
_log = logging.getLogger(__name__)
Alive = Callable[[], bool]
Admits = Callable[[Neighbour, int], bool]  # whether a node is to get a copy that takes so many bytes
Count = Callable[[str, float], None]


class Directory(Protocol):
    """The cell. Safe to use from several threads."""

    @property
    def member(self) -> Member:
        """This node."""

    def lookup(self, root: bytes, keys: KeyArray) -> Holders:
        """Who holds how much of a chain from block 0 on: a hint."""


class Spread:
    """Safe to use from several threads. ``count(name, amount)`` counts."""

    def __init__(
        self, stock: Stock, cell: Directory, view: View, copier: Copier, count: Count, clock: Callable[[], float]
    ) -> None:
        self._stock = stock
        self._cell = cell
        self._view = view
        self._copier = copier
        self._count = count
        self._clock = clock
        self._backoffs = Backoffs(clock)
        self.stopping = threading.Event()

    def held(self, chain: Chain) -> dict[bytes, int]:
        """What other nodes hold of a chain, as far as is known: leading blocks by boot of the node."""
        known, found = self._view.now(), self._cell.lookup(chain.root, chain.keys)
        return {known[n].boot: blocks for n, blocks in found.prefix.items() if n in known}

    def to(
        self, chain: Chain, others: int, have: dict[bytes, int], until: float, alive: Alive,
        admits: Admits = lambda node, size: True, owed: bool = True, sure: bool = False,
    ) -> int:  # fmt: skip
        """Copies until ``others`` nodes hold all of a chain, in which ``have`` is counted and noted; how many leading
        blocks so many hold when no more could be done by ``until`` (time.monotonic). Nodes that are gone, or have
        started anew, count no more; ``sure``: nor those that are suspect."""
        refused: set[bytes] = set()  # this chain, whatever else they take
        begun = b""  # the node that has taken some of it already goes on
        while (reached := held_by(self._counted(have, sure), others)) < chain.blocks:
            now = self._clock()
            if now >= until or not alive() or self.stopping.is_set():
                break
            order = [node for node in self._order(chain, have, admits) if node.boot not in refused]
            ready = [node for node in order if not self._backoffs.left(node.member.node_id)]
            if ready:
                node = next((one for one in ready if one.boot == begun), ready[0])
                begun = node.boot if self._ask(chain, node, have, refused, until, owed) else b""
                if not begun and self._gone(chain):
                    break
                continue
            wait = min((self._backoffs.left(node.member.node_id) for node in order), default=None)
            if wait is None or now + wait >= until:
                break  # there is nobody to ask, or not in time
            self.stopping.wait(wait)
        return reached

    def _counted(self, have: dict[bytes, int], sure: bool) -> list[int]:
        known = self._view.now().values()
        return [have[one.boot] for one in known if one.boot in have and not (sure and one.state is State.SUSPECT)]

    def _order(self, chain: Chain, have: dict[bytes, int], admits: Admits) -> list[Neighbour]:
        """Nodes to ask, best first; none of those that have it all."""
        known = self._view.now()
        prefix = dict(self._cell.lookup(chain.root, chain.keys).prefix)
        prefix.update({n: have[one.boot] for n, one in known.items() if one.boot in have})
        chosen = [one.room for one in known.values() if have.get(one.boot, 0) >= chain.blocks]
        key, rooms = chain.key(branch(prefix, chain.blocks)), [one.room for one in known.values()]
        order = preferred(key, [own_room(self._cell.member), *chosen], rooms, prefix, chain.blocks)
        missing = {room.node: (chain.blocks - prefix.get(room.node, 0)) * chain.block_bytes for room in order}
        return [known[room.node] for room in order if admits(known[room.node], missing[room.node])]

    def _ask(
        self, chain: Chain, node: Neighbour, have: dict[bytes, int], refused: set[bytes], until: float, owed: bool
    ) -> bool:
        """Whether a node has more of the chain than was known."""
        target, began = node.member, self._clock()
        patience = PATIENCE + chain.blocks * chain.block_bytes / SLOWEST
        deadline = min(until, began + patience)
        try:
            reply = self._copier.copy(target, chain.canonical, chain.root, chain.keys, owed, deadline)
        except KVStoreError as error:
            _log.info("no copy was taken by %s: %s", target.control_address, error)
            self._count(f"failed_{_NAMES.get(type(error).__name__, 'error')}", 1)
            if isinstance(error, NotServed):  # busy ones are well, and have others to serve first
                self._backoffs.failed(target.node_id, _BUSY if isinstance(error, Busy) else LONGEST)
            else:
                refused.add(node.boot)
            return False
        finally:
            self._count("seconds", self._clock() - began)
        before, now = have.get(node.boot, 0), min(reply.blocks, chain.blocks)
        have[node.boot] = now
        self._count("bytes", reply.bytes)
        if now == chain.blocks:
            self._count("made" if reply.bytes else "confirmed", 1)
        if now < chain.blocks and now <= before:
            if not self._gone(chain):
                self._count("failed_short", 1)
                self._backoffs.failed(target.node_id)
            return False
        self._backoffs.worked(target.node_id)
        return True

    def _gone(self, chain: Chain) -> bool:
        """It is not here any more, so nobody can be given it."""
        found = self._stock.chain(chain.handle, chain.key(chain.blocks - 1))
        return found is None or found.blocks < chain.blocks


_NAMES = {
    "DeadlineExceeded": "timeout", "Unavailable": "unavailable", "Busy": "busy",
    "Unsupported": "refused", "NoSpace": "no_space",
}  # fmt: skip
