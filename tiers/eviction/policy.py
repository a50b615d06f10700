"""What every eviction policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import IntArray
from kvstore.tiers.eviction.features import Features
from kvstore.tiers.index import BlockIndex
from kvstore.tiers.residence import TierRows, every_row

Seconds: TypeAlias = npt.NDArray[np.float64]
BlockTokens: TypeAlias = Callable[[int], int]  # namespace handle -> tokens of one block
Evictable: TypeAlias = Callable[[int], bool]  # row -> whether it may go now


class EvictionPolicy(ABC):
    """Learns from what is asked for and put, and names the leaf that goes next.

    It reads the index and owns its columns by row. Not locked: called under the lock that guards the index.
    Times are seconds of any one clock that does not go back.

    ``tiers``: those whose room it manages, each with an order and leaves of its own; what is learnt is common to all. A
    new block enters the first one. Without them there is one tier that has every row.
    """

    name: ClassVar[str]

    def __init__(self, index: BlockIndex, block_tokens: BlockTokens, tiers: Sequence[TierRows] = ()) -> None:
        self.index = index
        self.tiers = tuple(tiers) or (every_row(index),)
        self.features = Features(index, block_tokens)

    @abstractmethod
    def inserted(self, rows: IntArray, parent_row: int, request: int, appended_tokens: int, now: float) -> None:
        """``rows`` were just inserted under ``parent_row`` (-1: none): consecutive blocks, chain order, one put piece.

        ``request`` 0 is anonymous. ``appended_tokens``: what the caller says that its request adds, 0: unknown.
        """

    @abstractmethod
    def restored(self, rows: IntArray, ages: Seconds, now: float) -> None:
        """Once, first of all: a restart filled the index with ``rows``, the longest unused first, deep blocks before
        those above them. ``ages``: seconds since each was last used."""

    @abstractmethod
    def touched(self, path: IntArray, request: int, now: float, chain_blocks: int) -> None:
        """A request asked for ``chain_blocks`` blocks and found ``path``: rows from block 0 on, maybe none."""

    @abstractmethod
    def removed(self, row: int) -> None:
        """A row without children is about to be removed or detached: called *before* the index forgets it."""

    @abstractmethod
    def entered(self, rows: IntArray, tier: int) -> None:
        """``rows``, known from another tier and in chain order, just became members of this one."""

    @abstractmethod
    def left(self, row: int, tier: int) -> None:
        """A member is about to leave a tier but stays known: called *before* the residence forgets it."""

    @abstractmethod
    def last_use(self, rows: IntArray, tier: int = 0) -> Seconds:
        """When members of a tier were last used, on a clock of the policy's own: larger is later."""

    @abstractmethod
    def unused(self, row: int, now: float) -> float:
        """Seconds since a block was last used, or put."""

    def worth(self, rows: IntArray) -> Seconds:
        """What members of the first tier are worth now, beside each other: 0 and up. Here by the order of last use."""
        last = self.last_use(rows)
        if not len(last):
            return last
        oldest = float(last.min())
        return (last - oldest) / max(1.0, float(last.max()) - oldest) + 0.1

    @abstractmethod
    def victim(self, evictable: Evictable, tier: int = 0) -> int | None:
        """The leaf of a tier to evict next; never one for which ``evictable`` is False or that is hard-pinned, soft
        pins last.

        None: nothing can go now. The caller removes the row (``removed``, then the index), or leaves it in.
        """

    @abstractmethod
    def unpinned(self, row: int) -> None:
        """A pin of ``row`` was lifted. Without this call it may count as pinned until its next touch."""

    def score(self, row: int) -> float:
        """What a block is worth whatever its age, for admission to a slower tier; about 0.1 (one-shot) to 5."""
        return self.features.score(row)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory behind the policy's own columns, queues and ghost."""
