"""Memory for blocks on their way: a bounded number of equal pieces, handed out and taken back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

PIECE_BYTES = 8 << 20


class Staging:
    """Pieces of ``piece_bytes``, made when first needed, never more than fit into ``total_bytes`` (at least one)."""

    def __init__(
        self, total_bytes: int, largest: int, make: Callable[[int], Any] = lambda size: np.empty(size, np.uint8)
    ) -> None:
        self.piece_bytes = max(PIECE_BYTES, largest)
        self.pieces = max(1, total_bytes // self.piece_bytes)
        self._make = make
        self._free: list[Any] = []
        self._made = 0
        self._changed = threading.Condition()

    def take(self, timeout: float = 0.0) -> Any | None:
        """A piece, or None when all are in use for ``timeout`` seconds."""
        with self._changed:
            if not self._free and self._made >= self.pieces and timeout > 0:
                self._changed.wait_for(lambda: bool(self._free), timeout)
            if self._free:
                return self._free.pop()
            if self._made >= self.pieces:
                return None
            self._made += 1
        try:
            return self._make(self.piece_bytes)
        except BaseException:
            with self._changed:
                self._made -= 1
            raise

    def give(self, piece: Any) -> None:
        with self._changed:
            self._free.append(piece)
            self._changed.notify()

    @property
    def in_use(self) -> int:
        return self._made - len(self._free)
