"""Serves Warm and Hottest: a new node fetches what is used most on the others before readers ask it for that."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from kvstore.cluster.cell import Cell
from kvstore.cluster.control_links import ControlLinks
from kvstore.cluster.fetch import Fetcher
from kvstore.cluster.member import Member
from kvstore.cluster.membership import State
from kvstore.core.errors import Busy, KVStoreError, UnknownNamespace, Unsupported
from kvstore.core.keys import key_array
from kvstore.node.handlers import open_namespace
from kvstore.tiers.store import BlockStore
from kvstore.v1 import control_pb2 as pb

AT_ONCE = 4  # chains that are on their way at a time
_EVERY = 0.5  # seconds between messages of progress
_CHAIN = 60.0  # seconds that one chain may take
_LIST = 30.0  # seconds that a node may take to list its chains
_CHAINS = 4096  # that a node lists at most
_FILL = 0.8  # of what is free here that is filled, when the caller does not say how much
_ALIVE = (State.LIVE, State.DRAINING)


def hottest(store: BlockStore, request: pb.HottestRequest) -> Iterator[pb.HotChain]:
    """The chains used last here, as many as fit the bytes and the count asked for."""
    left, most = request.max_bytes or 1 << 62, min(request.max_chains or _CHAINS, _CHAINS)
    for leaf in store.chains.leaves():
        if left <= 0 or most <= 0:
            return
        try:
            keys, spec = store.chains.ancestry(leaf.handle, leaf.key), store.spec(leaf.handle)
        except UnknownNamespace:  # dropped meanwhile
            continue
        if len(keys):
            yield pb.HotChain(root=leaf.root, canonical=spec.canonical(), keys=keys.tobytes())
            left -= len(keys) * sum(part.bytes for part in spec.parts)
            most -= 1


class Warming:
    """One warm-up at a time. ``fetcher``: None while nothing is fetched from other nodes."""

    def __init__(self, store: BlockStore, cell: Cell, links: ControlLinks, fetcher: Fetcher | None) -> None:
        self._store = store
        self._cell = cell
        self._links = links
        self._fetcher = fetcher
        self._one = threading.Lock()

    def warm(self, request: pb.WarmRequest, alive: Callable[[], bool]) -> Iterator[pb.WarmProgress]:
        """Messages of progress, for as long as the caller listens. Raises Busy, Unsupported."""
        if self._fetcher is None:
            raise Unsupported("this node fetches nothing from other nodes: fetch = off", key="fetch")
        if not self._one.acquire(blocking=False):
            raise Busy("this node is being warmed already; wait for that to end")
        try:
            room = request.max_bytes or int(self._store.journal.room()[1] * _FILL)
            deadline = time.monotonic() + (request.deadline_seconds or 1e9)
            yield from _Warm(self._store, self._fetcher, room, deadline, alive).run(self._lists(room, deadline))
        finally:
            self._one.release()

    def _lists(self, room: int, deadline: float) -> dict[bytes, tuple[Member, list[pb.HotChain] | KVStoreError]]:
        """What each node that can be read from has, or why it does not say."""
        sources = [peer.member for peer in self._cell.peers() if peer.state in _ALIVE]
        asked = pb.HottestRequest(max_bytes=max(1, room))  # what others list too is fetched once

        def ask(source: Member) -> list[pb.HotChain] | KVStoreError:
            try:
                until = min(deadline, time.monotonic() + _LIST)
                return self._links.call(source, lambda stub, left: list(stub.Hottest(asked, timeout=left)), until)
            except KVStoreError as error:
                return error

        with ThreadPoolExecutor(max(1, len(sources)), thread_name_prefix="warm-list") as pool:
            return {
                source.node_id: (source, found)
                for source, found in zip(sources, pool.map(ask, sources), strict=True)
            }  # fmt: skip


class _Warm:
    """A warm-up under way."""

    def __init__(
        self, store: BlockStore, fetcher: Fetcher, room: int, deadline: float, alive: Callable[[], bool]
    ) -> None:
        self._store = store
        self._fetcher = fetcher
        self._room = room
        self._deadline = deadline
        self._alive = alive
        self._lock = threading.Lock()
        self._blocks = self._bytes = 0
        self._trouble = ""

    def run(
        self, lists: dict[bytes, tuple[Member, list[pb.HotChain] | KVStoreError]]
    ) -> Iterator[pb.WarmProgress]:  # fmt: skip
        self._trouble = "; ".join(str(found) for _, found in lists.values() if isinstance(found, KVStoreError))
        known = [(source, found) for source, found in lists.values() if isinstance(found, list)]
        told, running = time.monotonic(), set[Future[None]]()
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="warm") as pool:
            for source, chain in in_turn(known):
                if not self._going():
                    break
                running.add(pool.submit(self._one, source, chain))
                if len(running) >= 2 * AT_ONCE:
                    _, running = wait(running, return_when=FIRST_COMPLETED)
                if time.monotonic() - told > _EVERY:
                    told = time.monotonic()
                    yield self._progress()
        last = self._progress()
        last.finished, last.trouble = True, self._trouble
        yield last

    def _going(self) -> bool:
        return self._alive() and time.monotonic() < self._deadline and self._bytes < self._room

    def _one(self, source: Member, chain: pb.HotChain) -> None:
        if not self._going():
            return
        try:
            view = open_namespace(self._store, chain.canonical, chain.root, False)
            keys = key_array(chain.keys)
            have = self._store.chains.present(view.handle, keys)
            until = min(self._deadline, time.monotonic() + _CHAIN)
            got = self._fetcher.copy(view.handle, view.root, keys, source, False, have, until, self._alive)
        except KVStoreError as error:
            self._trouble = str(error)
            return
        with self._lock:
            self._blocks += got - have
            self._bytes += (got - have) * sum(part.bytes for part in view.spec.parts)

    def _progress(self) -> pb.WarmProgress:
        return pb.WarmProgress(blocks_done=self._blocks, bytes_done=self._bytes)


def in_turn(lists: Iterable[tuple[Member, list[pb.HotChain]]]) -> Iterator[tuple[Member, pb.HotChain]]:
    """The hottest of each, then the next of each: ages on different nodes cannot be compared."""
    left = deque((source, deque(chains)) for source, chains in lists if chains)
    while left:
        source, chains = left.popleft()
        yield source, chains.popleft()
        if chains:
            left.append((source, chains))
