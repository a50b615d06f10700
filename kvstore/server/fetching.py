"""Fetching from other nodes, joined to a node's store and its readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kvstore.cluster.cell import Cell
from kvstore.cluster.fetch import Fetcher
from kvstore.cluster.fetch_target import Slots
from kvstore.core.keys import KeyArray
from kvstore.core.namespace import NamespaceSpec
from kvstore.node.handlers import Handlers
from kvstore.node.layout import layout_of
from kvstore.node.metrics import catalog_node as known
from kvstore.node.metrics.family import sampled, single
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import ChainSlice
from kvstore.transport.batch import Generation

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Fetched blocks are extra copies: they are to go before what this node alone has. The policy ranks a block by the turn
# of its request, by how little that appended to what was known, and by importance. So they are put without a request
# and without importance, and as if this much had been appended. Once a reader uses them they rank by their use.
_APPENDED_TOKENS = 1 << 31


class StoreTarget:
    """A BlockTarget that is a node's own store."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._session = store.open_session(False, "fetched from other nodes")
        self._session.own = True  # readers of a draining node get what others have; Copying refuses the rest there

    def spec(self, handle: int) -> NamespaceSpec:
        return self._store.spec(handle)

    def generation(self, root: bytes) -> Generation | None:
        return self._store.lifecycle.generation(root)

    def reserve(
        self, handle: int, keys: KeyArray, parent: bytes, first: int, parts: tuple[int, ...], owed: bool
    ) -> Slots:
        chain, appended = ChainSlice(keys, parent, first), 0 if owed else _APPENDED_TOKENS
        made = self._store.reserve(self._session, handle, chain, parts, appended_tokens=appended)
        layout, writable = layout_of(self._store.spec(handle), parts), self._store.dram.writable
        lengths = [cut.length for cut in layout.cuts] * (made.slots // len(layout.cuts))
        views = [
            np.frombuffer(writable(offset, length), np.uint8)
            for offset, length in zip(made.offsets.tolist(), lengths, strict=True)
        ]
        return Slots(made.id, made.outcomes, views)

    def commit(self, slots: int, sums: list[int]) -> bytes:
        return self._store.commit(self._session, slots, np.array(sums, np.uint64))

    def abort(self, slots: int) -> None:
        self._store.abort(self._session, slots)

    def close(self) -> None:
        self._store.close_session(self._session)


class Fetching:
    """Joins a node's readers to its cell."""

    def __init__(self, store: BlockStore, cell: Cell, handlers: Handlers, wait: float) -> None:
        self._target = StoreTarget(store)
        self.fetcher = Fetcher(self._target, cell, cell.member.node_id)
        handlers.join(self.fetcher, wait)

    def stop(self) -> None:
        """Readers that wait for other nodes get what is here."""
        self.fetcher.stop()
        self._target.close()

    def metrics(self) -> Iterator[Metric]:
        return fetch_metrics(self.fetcher)


_COUNTERS = (
    ("blocks", known.FETCHED),
    ("bytes", known.FETCHED_BYTES),
    ("batches", known.FETCH_BATCHES),
    ("seconds", known.FETCH_SECONDS),
    ("joined_blocks", known.FETCH_JOINED),
    ("busy_blocks", known.FETCH_BUSY),
)
_FAILED = "failed_"


def fetch_metrics(fetcher: Fetcher) -> Iterator[Metric]:
    """What was fetched, what was not and why, and the time it took."""
    counters = fetcher.counters
    for name, family in _COUNTERS:
        yield single(family, counters.get(name, 0))
    failed = {name.removeprefix(_FAILED): count for name, count in counters.items() if name.startswith(_FAILED)}
    yield sampled(known.FETCH_FAILURES, {(reason,): count for reason, count in failed.items()})
    yield single(known.FETCHING, fetcher.under_way)
