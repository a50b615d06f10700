"""Serves Copy: a chain that another node has, or names a holder of, is fetched into the own store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvstore.cluster.cell import Cell
from kvstore.cluster.copier import member_of
from kvstore.cluster.fetch import Fetcher
from kvstore.core.errors import Busy, InvalidArgument, Unavailable, Unsupported
from kvstore.node.checks import checked_keys
from kvstore.node.handlers import open_namespace
from kvstore.tiers.store import BlockStore
from kvstore.v1 import control_pb2 as pb

AT_ONCE = 8  # copies that are taken at a time; each moves many blocks
_SECONDS = 30.0  # that one may take when its caller does not say


class Copying:
    """Safe to use from several threads. ``fetcher``: None while nothing is fetched from other nodes."""

    def __init__(self, store: BlockStore, cell: Cell, fetcher: Fetcher | None, max_keys: int) -> None:
        self._store = store
        self._cell = cell
        self._fetcher = fetcher
        self._max_keys = max_keys
        self._places = threading.BoundedSemaphore(AT_ONCE)

    def copy(self, request: pb.CopyRequest, alive: Callable[[], bool]) -> pb.CopyReply:
        """Raises KVStoreError."""
        fetcher = self._ready_fetcher()
        source = member_of(request.source)
        if source.node_id == self._cell.member.node_id:
            raise InvalidArgument("a node cannot copy from itself", field="source")
        deadline = time.monotonic() + (request.deadline_ms / 1000 or _SECONDS)
        keys = checked_keys(request.keys, self._max_keys)
        view = open_namespace(self._store, request.canonical, request.root, False)
        if any(part.kind != "prefix" for part in view.spec.parts):
            raise Unsupported("blocks with window or state parts are not copied between nodes yet")
        if not self._places.acquire(timeout=max(0.0, min(1.0, deadline - time.monotonic()))):
            raise Busy(f"{AT_ONCE} copies are being taken already; try again", limit=AT_ONCE)
        try:
            have = self._store.chains.present(view.handle, keys)
            got = fetcher.copy(view.handle, view.root, keys, source, request.owed, have, deadline, alive)
            block = sum(part.bytes for part in view.spec.parts)
            return pb.CopyReply(blocks=got, bytes=(got - have) * block)
        finally:
            self._places.release()

    def _ready_fetcher(self) -> Fetcher:
        if self._fetcher is None:
            raise Unsupported("this node fetches nothing from other nodes: fetch = off", key="fetch")
        if self._cell.member.draining:
            raise Unavailable("this node is draining and takes no blocks")
        return self._fetcher
