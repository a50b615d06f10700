"""What of its own store a node's keeper of copies sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from kvstore.core.keys import KeyArray


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain that is here from block 0 to its last one. ``handle``, ``root`` and ``canonical`` name its namespace."""

    handle: int
    root: bytes
    canonical: bytes
    keys: KeyArray
    block_bytes: int

    @property
    def blocks(self) -> int:
        return len(self.keys)

    def first(self, blocks: int) -> Chain:
        """Its first blocks."""
        return replace(self, keys=self.keys[:blocks])

    def key(self, block: int) -> bytes:
        return bytes(self.keys[block].tobytes())


class Leaf(Protocol):
    """The last block of a chain."""

    @property
    def handle(self) -> int: ...

    @property
    def root(self) -> bytes: ...

    @property
    def key(self) -> bytes: ...

    @property
    def blocks(self) -> int:
        """How many the chain has."""


class Stock(Protocol):
    """Safe to use from several threads."""

    def chain(self, handle: int, key: bytes) -> Chain | None:
        """The chain that ends with a block, as far as all of it can be read here; None: nothing can."""

    def block_bytes(self, handle: int) -> int:
        """Of all parts; 0 for a namespace that is not here any more."""

    def leaves(self) -> Iterator[Leaf]:
        """All chains that nothing here goes on, the one used last first."""

    def idle(self, handle: int, key: bytes) -> float:
        """Seconds since a block was used last; infinite when it is not here."""

    def pressed(self) -> bool:
        """Whether something has to go to make room for new blocks."""

    def drop(self, chain: Chain) -> int:
        """Drops the end of a chain, as far as nothing hangs on it, leases or pins it: how many blocks."""
