"""Evicting by name, as servers see it: here, and on the other nodes of a cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kvstore.core.keys import KeyArray

Elsewhere: TypeAlias = Callable[[bytes, KeyArray], int]  # root and keys: blocks dropped on the other node with most


def nowhere(root: bytes, keys: KeyArray) -> int:
    """Of a node that stands alone."""
    return 0


def with_others(evicted: int, absent: int, elsewhere: int) -> tuple[int, int]:
    """Blocks evicted in the cell, and keys that nobody had, as far as one node says: copies count once."""
    more = max(0, elsewhere - evicted)
    return evicted + more, max(0, absent - more)
