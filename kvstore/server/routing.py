"""What a node's cell says to clients that route themselves."""

from __future__ import annotations

import time
from dataclasses import replace

from kvstore.cluster.cell import Cell
from kvstore.cluster.membership import State
from kvstore.cluster.neighbours import neighbours
from kvstore.cluster.placement import Run, Tail, place
from kvstore.cluster.prefix_index import Holders
from kvstore.cluster.room import Room
from kvstore.core.keys import KeyArray
from kvstore.node.routing import Goes, Holder, Wanted
from kvstore.tiers.store import BlockStore

OWN = -1  # this node among the numbers of the others
_FRESH = 0.1  # seconds that what is known of all nodes is used again


class CellRoutes:
    """Implements kvstore.node.routing.Routes."""

    def __init__(self, store: BlockStore, cell: Cell) -> None:
        self._store = store
        self._cell = cell
        self._rooms: tuple[float, dict[int, Room]] = (-_FRESH, {})

    def holders(self, root: bytes, keys: KeyArray) -> list[Holder]:
        found = self._same(root, self._cell.lookup(root, keys)).prefix
        some = [self._holder(number, blocks) for number, blocks in sorted(found.items(), key=lambda one: -one[1])]
        return [one for one in some if one is not None]

    def _same(self, root: bytes, found: Holders) -> Holders:
        """Those whose blocks are of the same generation of the namespace as those here."""
        own = self._store.lifecycle.generation(root)
        same = {number for number in found.prefix if self._cell.generation(number, root) == own}
        return replace(found, prefix={number: blocks for number, blocks in found.prefix.items() if number in same})

    def _holder(self, number: int, blocks: int = 0) -> Holder | None:
        member = self._cell.holder(number)
        return None if member is None else Holder(member.node_id, member.data_address, blocks)

    def took(self, size: int) -> None:
        self._cell.taken.add(OWN, size)

    def place(self, root: bytes, keys: KeyArray, wanted: Wanted) -> list[Goes]:
        known = self._known(wanted.together)
        found = self._same(root, self._cell.lookup(root, keys))
        first, tail = tail_of(found, wanted.here, known)
        mine = [room.node for room in known.values() if wanted.host and room.host == wanted.host and room.takes]
        here = mine[0] if len(mine) == 1 else None  # of several on one machine none is nearer
        return self._goes(
            place(first, len(keys), wanted.block_bytes, lambda block: keys[block].tobytes(), known, tail, here)
        )

    def _goes(self, runs: list[Run]) -> list[Goes]:
        found: list[Goes] = []
        for run in runs:
            node = None if run.node == OWN else self._holder(run.node)
            if node is not None or run.node == OWN:
                found.append(Goes(node, run.first, run.end))
        return found

    def _known(self, together: bool) -> dict[int, Room]:
        """All nodes that can be read from. ``together``: as if all were equally full."""
        at, known = self._rooms
        now = time.monotonic()
        if now - at >= _FRESH:
            taken = self._cell.taken.by_node()
            others = neighbours(self._cell.peers(), taken).items()
            known = {number: one.room for number, one in others if one.state is not State.SUSPECT}
            known[OWN] = self._own(taken.get(OWN, 0))
            self._rooms = now, known
        if together:
            return {number: replace(room, taken_bytes=0, free_bytes=0) for number, room in known.items()}
        return known

    def _own(self, taken: int) -> Room:
        member = self._cell.member
        capacity, free = self._store.journal.room()
        return Room(OWN, member.node_id, capacity, free, taken, member.host, member.zone, not member.draining)


def tail_of(found: Holders, here: int, known: dict[int, Room]) -> tuple[int, Tail | None]:
    """How much of a chain some node has, and which ones have as much. ``here``: blocks that this node has."""
    blocks = {number: prefix for number, prefix in found.prefix.items() if number in known} | {OWN: here}
    most = max(blocks.values())
    if not most:
        return 0, None
    return most, Tail({number: prefix for number, prefix in blocks.items() if prefix == most})
