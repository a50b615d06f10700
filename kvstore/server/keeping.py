"""Keeping copies of what a node holds, joined to its store, its writers and its metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvstore.cluster.cell import Cell
from kvstore.cluster.copier import Copier
from kvstore.cluster.keeper import Keeper
from kvstore.cluster.mender import Mender
from kvstore.cluster.stock import Chain, Leaf
from kvstore.core.errors import UnknownNamespace
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

    def drop(self, chain: Chain) -> int:
        try:
            return self._store.chains.drop(chain.handle, chain.keys)
        except UnknownNamespace:
            return 0


class Keeping:
    """Joins what is put at a node, over each of the ``Acks`` that join, to its keeper."""

    def __init__(self, store: BlockStore, cell: Cell, copier: Copier, copies: int, rate: int) -> None:
        stock = StoreStock(store)
        self.keeper = keeper = Keeper(stock, cell, copier, copies)
        self._mender = Mender(
            stock, cell, keeper.view, keeper.spread, keeper.counts, copies, rate, keeper.missed
        )  # fmt: skip

    def start(self) -> None:
        """The cell has started."""
        self.keeper.start()
        self._mender.start()

    def stop(self) -> None:
        """Puts that wait are answered."""
        self.keeper.stop()

    def metrics(self) -> Iterator[Metric]:
        """What is owed, what was copied, and what could not be."""
        keeper = self.keeper
        return replication_metrics(OwedCopies(*keeper.owed, dropped=keeper.dropped), keeper.counts.all())
