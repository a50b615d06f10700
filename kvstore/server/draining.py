"""Serves Drain: this node takes no new blocks any more, and what only it has is copied to others, hottest first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from kvstore.cluster.cell import Cell
from kvstore.cluster.copier import Copier
from kvstore.cluster.copies import worth
from kvstore.cluster.neighbours import Neighbour, neighbours
from kvstore.core.errors import Busy, KVStoreError
from kvstore.core.keys import KeyArray
from kvstore.server.targets import next_targets
from kvstore.tiers.chains import Leaf
from kvstore.tiers.store import BlockStore
from kvstore.v1 import control_pb2 as pb

AT_ONCE = 4  # chains that are on their way at a time
_EVERY = 0.5  # seconds between messages of progress
_CHAIN = 60.0  # seconds that one chain may take
_SETTLE = 0.3  # seconds that events of other nodes take, and puts begun before the drain
_TRIES = 3  # passes in a row that copy nothing before what is left is given up
_CANCELLED = "the drain was cancelled, and the node takes new blocks again"
_NOBODY = "no other live node of the cell takes blocks"
_NO_ROOM = "other nodes have no room for what was used less lately than what they have"


class Draining:
    """One drain at a time. ``copies``: so many other nodes are to have each block."""

    def __init__(self, store: BlockStore, cell: Cell, copier: Copier, copies: int) -> None:
        self._store = store
        self._cell = cell
        self._copier = copier
        self._copies = copies
        self._one = threading.Lock()
        self._cancelled = threading.Event()

    def drain(self, request: pb.DrainRequest, alive: Callable[[], bool]) -> Iterator[pb.DrainProgress]:
        """Messages of progress; the last one says what is left. It goes on for as long as the caller listens, and the
        node takes no new blocks until ``cancel``. Raises Busy."""
        if request.cancel:
            self._cancelled.set()
            self._refuse(False)
            yield pb.DrainProgress(finished=True)
            return
        if not self._one.acquire(blocking=False):
            raise Busy("this node is being drained already; wait for that to end")
        try:
            self._cancelled.clear()
            self._refuse(True)
            deadline = time.monotonic() + (request.deadline_seconds or 1e9)

            def wanted() -> bool:
                return alive() and not self._cancelled.is_set()

            yield from _Drain(self._store, self._cell, self._copier, self._copies, deadline, wanted).run()
        finally:
            self._one.release()

    def _refuse(self, yes: bool) -> None:
        self._store.chains.refuse(yes)
        self._cell.update(draining=yes)


class _Drain:
    """A drain under way."""

    def __init__(
        self, store: BlockStore, cell: Cell, copier: Copier, copies: int, deadline: float, alive: Callable[[], bool]
    ) -> None:
        self._store = store
        self._cell = cell
        self._copier = copier
        self._copies = copies
        self._deadline = deadline
        self._alive = alive
        self._bytes = self._blocks = self._total = 0
        self._trouble = ""
        self._given: dict[bytes, tuple[int, int]] = {}  # by node: what was free there at first, and went there since
        self._safe: set[bytes] = set()  # leaves that others have, by their own word

    def run(self) -> Iterator[pb.DrainProgress]:
        self._total = left = self._sole()
        yield self._progress(left)
        vain = 0
        while self._going() and vain < _TRIES:
            before = left
            yield from self._pass(left)
            time.sleep(_SETTLE)
            left = self._sole()
            if not left and self._going() and not self._store.stat().writing:
                break
            vain = vain + 1 if left >= before else 0
            self._safe.clear()  # what was copied may have been evicted there
        last = self._progress(left)
        last.finished, last.blocks_left = True, left
        last.trouble = self._why(left) if self._alive() else _CANCELLED
        yield last

    def _why(self, left: int) -> str:
        if not left:
            return ""
        if not any(one.room.takes for one in neighbours(self._cell.peers(), self._cell.taken.by_node()).values()):
            return _NOBODY
        return self._trouble or "the time was up"

    def _going(self) -> bool:
        return self._alive() and time.monotonic() < self._deadline

    def _pass(self, left: int) -> Iterator[pb.DrainProgress]:
        """Copies every chain that too few have, once."""
        told, before, running = time.monotonic(), self._blocks, set[Future[None]]()
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="drain") as pool:
            for leaf in self._store.chains.leaves():
                if not self._going():
                    break
                running.add(pool.submit(self._one, leaf))
                if len(running) >= 2 * AT_ONCE:
                    _, running = wait(running, return_when=FIRST_COMPLETED)
                if time.monotonic() - told > _EVERY:
                    told = time.monotonic()
                    yield self._progress(max(0, left - (self._blocks - before)))

    def _one(self, leaf: Leaf) -> None:
        if leaf.key in self._safe or not self._going():
            return
        try:
            keys = self._store.chains.ancestry(leaf.handle, leaf.key)
            if len(keys):
                self._copy(leaf, keys)
        except KVStoreError as error:
            self._trouble = str(error)

    def _copy(self, leaf: Leaf, keys: KeyArray) -> None:
        found = self._cell.lookup(leaf.root, keys)
        spec, idle = self._store.spec(leaf.handle), self._store.chains.unused(leaf.handle, leaf.key)
        block = sum(part.bytes for part in spec.parts)

        def fits(one: Neighbour) -> bool:
            return worth(
                (len(keys) - found.prefix.get(one.room.node, 0)) * block, idle, self._free(one), one.eviction_age
            )

        targets, missing = next_targets(self._cell, found, leaf.key, len(keys), self._copies, fits)
        if missing > len(targets):
            self._trouble = _NO_ROOM
        for target in targets:
            until = min(self._deadline, time.monotonic() + _CHAIN)
            reply = self._copier.copy(target, spec.canonical(), leaf.root, keys, True, until)
            self._bytes += reply.bytes
            self._blocks += reply.bytes // block
            first, given = self._given[target.node_id]
            self._given[target.node_id] = (first, given + reply.bytes)
            if reply.blocks == len(keys):
                missing -= 1
            else:
                self._trouble = f"node {target.node_id.hex()[:8]} took {reply.blocks} of {len(keys)} blocks of a chain"
        if missing <= 0:
            self._safe.add(leaf.key)

    def _free(self, one: Neighbour) -> int:
        """What is free at a node: its own word is up to a second old."""
        free = one.room.free_bytes
        first, given = self._given.setdefault(one.member.node_id, (free, 0))
        return min(free, first - given)

    def _sole(self) -> int:
        """Blocks that no other node has that stays."""
        stay = sum(
            1 << number
            for number, one in neighbours(self._cell.peers(), self._cell.taken.by_node()).items()
            if one.room.takes
        )
        count = 0
        for root, keys in self._store.chains.ready():
            count += sum(not mask & stay for mask in self._cell.index.masks(root, keys).tolist())
        return count

    def _progress(self, left: int) -> pb.DrainProgress:
        self._total = max(self._total, left)
        return pb.DrainProgress(
            blocks_done=self._total - left, blocks_total=self._total, bytes_done=self._bytes, blocks_left=left
        )  # fmt: skip
