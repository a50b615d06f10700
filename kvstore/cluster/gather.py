"""Runs that say the same of blocks of one namespace become one call of the index, which costs as much for one block as
for hundreds. On a node that has evicted for a while most runs are a block or two long."""

from __future__ import annotations

import numpy as np

from kvstore.cluster.prefix_index import PrefixIndex
from kvstore.core.keys import KeyArray


class Gather:
    """A BlockSink of one node's events before an index; ``flush`` when a batch of them has been told."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._what = (0, b"", 0)  # node, root, tiers
        self._keys: list[KeyArray] = []

    def flush(self) -> None:
        if self._keys:
            node, root, tiers = self._what
            keys, self._keys = self._keys, []
            self._index.stored(node, root, 0, np.concatenate(keys), tiers)

    def stored(self, node: int, root: bytes, first_block: int, keys: KeyArray, tiers: int) -> None:
        if self._what != (node, root, tiers):
            self.flush()
            self._what = (node, root, tiers)
        self._keys.append(keys)

    def removed(self, node: int, root: bytes, keys: KeyArray) -> None:
        self.flush()
        self._index.removed(node, root, keys)

    def drop_namespace(self, node: int, root: bytes) -> None:
        self.flush()
        self._index.drop_namespace(node, root)

    def begin_snapshot(self, node: int) -> None:
        self.flush()
        self._index.begin_snapshot(node)

    def end_snapshot(self, node: int) -> None:
        self.flush()
        self._index.end_snapshot(node)
