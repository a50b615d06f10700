"""Where the events of the cell's nodes go: the index of who holds what, or anything with its methods."""

from __future__ import annotations

from typing import Protocol

from kvstore.core.keys import KeyArray

DRAM, NVME, HBM = 1, 2, 4  # bits of ``tiers``


class BlockSink(Protocol):
    """``node``: the small number of a node. Called from one thread for each node, quickly: events wait meanwhile."""

    def stored(self, node: int, root: bytes, first_block: int, keys: KeyArray, tiers: int) -> None:
        """Consecutive blocks of one chain can be read on the node in these tiers, and in no others."""

    def removed(self, node: int, root: bytes, keys: KeyArray) -> None:
        """Blocks cannot be read on the node any more; it may never have been told that they could."""

    def drop_namespace(self, node: int, root: bytes) -> None:
        """No block of a namespace can be read on the node any more."""

    def begin_snapshot(self, node: int) -> None:
        """From now on everything is told that is on the node. One that had begun and not ended is void."""

    def end_snapshot(self, node: int) -> None:
        """What was not told since the snapshot began is not on the node."""
