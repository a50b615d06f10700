"""Rotations of a whole cell: what is void here is void on all other nodes, and what they have voided is void here."""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from kvstore.cluster.cell import Cell
from kvstore.cluster.control_links import ControlLinks
from kvstore.cluster.generations import NEVER, after_hearing, after_order
from kvstore.cluster.member import Member
from kvstore.cluster.membership import State
from kvstore.core.errors import Busy, Closed, InvalidArgument, KVStoreError, Unavailable, UnknownNamespace
from kvstore.node.rotating import Spread
from kvstore.tiers.lifecycle import Rotated
from kvstore.tiers.namespaces import LAST_GENERATION
from kvstore.tiers.store import BlockStore
from kvstore.transport.batch import Generation
from kvstore.v1 import control_pb2 as pb

SECONDS = 5.0  # that the others may take, when the caller does not say
_AT_ONCE = 16  # nodes
_AGAIN = 0.1  # seconds until a rotation that found another one under way is tried again
_log = logging.getLogger(__name__)


class Rotating:
    """Safe to use from several threads."""

    def __init__(self, store: BlockStore, cell: Cell, links: ControlLinks) -> None:
        self._store = store
        self._cell = cell
        self._links = links
        self._lock = threading.Lock()
        self._latest: dict[bytes, Generation] = {}  # heard of, by namespace
        self._heard: queue.SimpleQueue[tuple[bytes, Generation] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, name="rotations", daemon=True)
        self._stopping = threading.Event()
        store.lifecycle.begin_at(lambda root: self._latest.get(root, NEVER))
        cell.on_generation = self.heard

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._heard.put(None)
        if self._thread.is_alive():
            self._thread.join(SECONDS)

    # --- asked for -----------------------------------------------------------------------------------------

    def rotate(self, root: bytes, deadline: float | None = None) -> Spread:
        """Voids a namespace on all nodes; those that cannot be reached now are named. Raises UnknownNamespace, Busy,
        Unavailable."""
        own = self._store.lifecycle.generation(root)
        if own is None:
            raise UnknownNamespace(f"no namespace here has the root {root.hex()}", root=root.hex())
        with self._lock:  # past what others have had already, so that they need not go on from there
            latest = max(own, self._latest.get(root, NEVER))
        to = latest[0] + 1, secrets.randbits(63) + 1
        here = self._store.lifecycle.rotate(root, to)
        self._note(root, to)
        until = time.monotonic() + SECONDS if deadline is None else deadline
        return Spread(here, tuple(self._tell(root, to, until)))

    def ordered(self, root: bytes, generation: int, rotation: int) -> Spread:
        """Another node has rotated: the same here. Raises Busy, Unavailable, InvalidArgument."""
        if not 0 < generation < LAST_GENERATION:
            raise InvalidArgument(f"generation {generation} cannot be", field="generation", got=generation)
        self._note(root, (generation, rotation))
        own = self._store.lifecycle.generation(root)
        to = None if own is None else after_order(own, (generation, rotation))
        if to is None:
            return Spread(Rotated(0, 0, generation, rotation))
        done = self._store.lifecycle.rotate(root, to)
        self._note(root, to)
        return Spread(done)

    def _tell(self, root: bytes, to: Generation, deadline: float) -> list[str]:
        """Asks all others at once; the addresses of those that did not do it."""
        peers = [peer for peer in self._cell.peers() if peer.state is not State.GONE]
        away = [peer.member.control_address for peer in peers if peer.state is State.SUSPECT]
        there = [peer.member for peer in peers if peer.state is not State.SUSPECT]
        if not there:
            return away
        request = pb.RotateNamespaceRequest(root=root, generation=to[0], rotation=to[1], peer=True)
        with ThreadPoolExecutor(min(_AT_ONCE, len(there)), "rotate") as pool:
            done = pool.map(lambda member: self._told(member, request, deadline), there)
            return away + [member.control_address for member, told in zip(there, done, strict=True) if not told]

    def _told(self, member: Member, request: pb.RotateNamespaceRequest, deadline: float) -> bool:
        while True:
            try:
                self._links.call(member, lambda stub, left: stub.RotateNamespace(request, timeout=left), deadline)
                return True
            except Busy:  # another rotation is under way there
                if time.monotonic() + _AGAIN >= deadline or self._stopping.wait(_AGAIN):
                    return False
            except KVStoreError as error:
                _log.warning("%s was not told of a rotation, and hears of it later: %s", member.control_address, error)
                return False

    # --- heard of ------------------------------------------------------------------------------------------

    def heard(self, root: bytes, generation: Generation) -> None:
        """What another node says of a namespace. Returns at once."""
        if 0 < generation[0] < LAST_GENERATION:
            self._note(root, generation)
            own = self._store.lifecycle.generation(root)
            if own is not None and after_hearing(own, generation) is not None:
                self._heard.put((root, generation))

    def _note(self, root: bytes, generation: Generation) -> None:
        with self._lock:
            self._latest[root] = max(self._latest.get(root, NEVER), generation)

    def _follow(self) -> None:
        while (item := self._heard.get()) is not None:
            root, generation = item
            try:
                self._adopt(root, generation)
            except Closed:
                return
            except Exception:
                _log.exception("namespace %s could not be rotated as other nodes have done", root.hex()[:8])

    def _adopt(self, root: bytes, generation: Generation) -> None:
        while not self._stopping.is_set():
            own = self._store.lifecycle.generation(root)
            to = None if own is None else after_hearing(own, generation)
            if to is None:
                return
            try:
                done = self._store.lifecycle.rotate(root, to)
            except Busy:
                self._stopping.wait(_AGAIN)
                continue
            except Unavailable as error:  # a disk in trouble: what is found is void all the same
                _log.error("%s", error)
                return
            self._note(root, to)
            _log.info("namespace %s was rotated on another node: %d blocks are void", root.hex()[:8], done.blocks)
            return
