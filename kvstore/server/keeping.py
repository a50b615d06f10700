"""Keeping copies of what a node holds, joined to its store, its writers and its metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvstore.cluster.cell import Cell
from kvstore.cluster.copier import Copier
from kvstore.cluster.keeper import Keeper
from kvstore.cluster.mender import Mender
from kvstore.cluster.pace import Pace
from kvstore.cluster.stock import Chain, Leaf
from kvstore.cluster.warmth import Warmth
from kvstore.core.errors import UnknownNamespace
from kvstore.node.acks import Acks
from kvstore.node.metrics.replication import OwedCopies, replication_metrics
from kvstore.tiers.store import BlockStore

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class StoreStock:
    """A Stock that is a node's own store."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    def chain(self, handle: int, key: bytes) -> Chain | None:
        try:
            keys = self._store.chains.ancestry(handle, key)
            keys = keys[: self._store.chains.present(handle, keys)]
            spec = self._store.spec(handle)
        except UnknownNamespace:
            return None
        if not len(keys) or any(part.kind != "prefix" for part in spec.parts):
            return None
        return Chain(handle, spec.root, spec.canonical(), keys, self.block_bytes(handle))

    def block_bytes(self, handle: int) -> int:
        try:
            return sum(part.bytes for part in self._store.spec(handle).parts)
        except UnknownNamespace:
            return 0

    def leaves(self) -> Iterator[Leaf]:
        return self._store.chains.leaves()

    def idle(self, handle: int, key: bytes) -> float:
        try:
            return self._store.chains.unused(handle, key)
        except UnknownNamespace:
            return math.inf

    def pressed(self) -> bool:
        return self._store.chains.eviction_age() > 0

    def drop(self, chain: Chain) -> int:
        try:
            return self._store.chains.drop(chain.handle, chain.keys)
        except UnknownNamespace:
            return 0


class Keeping:
    """A node's part in how many copies there are of each block: its keeper, its mender, and what makes extra copies."""

    def __init__(self, store: BlockStore, cell: Cell, copier: Copier, copies: int, rate: int) -> None:
        stock = StoreStock(store)
        self._keeper = keeper = Keeper(stock, cell, copier, copies)
        pace = Pace(rate, keeper.spread.stopping, time.monotonic)
        common = (stock, cell, keeper.view, keeper.spread, pace, keeper.counts, copies)
        self._mender = Mender(*common, keeper.missed) if copies > 1 else None
        self.warmth = Warmth(*common)

    def join(self, acks: Acks) -> None:
        """What is put over these is copied to other nodes, if there are to be copies."""
        if self._mender:
            acks.join(self._keeper)

    def start(self) -> None:
        """The cell has started."""
        self.warmth.start()
        if self._mender:
            self._keeper.start()
            self._mender.start()

    def stop(self) -> None:
        """Puts that wait are answered."""
        self._keeper.stop()

    def metrics(self) -> Iterator[Metric]:
        """What is owed, what was copied, and what could not be."""
        keeper = self._keeper
        lacking = self._mender.lacking if self._mender else 0
        owed = OwedCopies(*keeper.owed, dropped=keeper.dropped, lacking=lacking)
        return replication_metrics(owed, keeper.counts.all())
