"""The store that fetched blocks go to, as the fetcher sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvstore.core.keys import KeyArray
from kvstore.core.namespace import NamespaceSpec
from kvstore.transport.batch import Generation
from kvstore.transport.mapping import Bytes

STORED, PRESENT, NO_SPACE, BUSY = 1, 2, 4, 6  # outcomes of a put (kvstore.v1.PutOutcome)


@dataclass(frozen=True, slots=True)
class Slots:
    """Places for the parts of blocks. ``outcomes``: one a key; ``views``: to write to, of the STORED ones, block-major
    by part. ``id`` 0: nothing was reserved."""

    id: int
    outcomes: bytes
    views: list[Bytes]


class BlockTarget(Protocol):
    """Safe to use from several threads. Raises KVStoreError."""

    def spec(self, handle: int) -> NamespaceSpec:
        """Of an open namespace."""

    def generation(self, root: bytes) -> Generation | None:
        """Of a namespace here: blocks of any other are of other weights. None: it is not here."""

    def reserve(
        self, handle: int, keys: KeyArray, parent: bytes, first: int, parts: tuple[int, ...], owed: bool
    ) -> Slots:
        """Slots for those of consecutive blocks that are not here; unless ``owed``, as the first to be evicted."""

    def commit(self, slots: int, sums: list[int]) -> bytes:
        """Makes reserved blocks visible; ``sums``: of all chunks of the views, in order. One outcome a reserved key."""

    def abort(self, slots: int) -> None:
        """Gives the slots back; they are written to no more."""
