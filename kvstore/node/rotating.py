"""Voiding a namespace, as servers see it: on this node, or on all of its cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvstore.tiers.lifecycle import Rotated
from kvstore.tiers.store import BlockStore


@dataclass(frozen=True, slots=True)
class Spread:
    """What a rotation did here, and the nodes that do not know of it yet: they void what they have when they hear of
    it, and none of it comes to nodes that have rotated."""

    here: Rotated
    unreached: tuple[str, ...] = ()


class Rotation(Protocol):
    """Safe to use from several threads. Raises UnknownNamespace, Busy, Unavailable, InvalidArgument."""

    def rotate(self, root: bytes, deadline: float | None = None) -> Spread:
        """Voids a namespace on all nodes that can be reached by a deadline (time.monotonic)."""

    def ordered(self, root: bytes, generation: int, rotation: int) -> Spread:
        """Another node has rotated, and tells all others itself: the same here."""


class Alone:
    """Of a node that stands alone."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    def rotate(self, root: bytes, deadline: float | None = None) -> Spread:
        return Spread(self._store.rotate_namespace(root))

    def ordered(self, root: bytes, generation: int, rotation: int) -> Spread:
        return Spread(self._store.rotate_namespace(root))
