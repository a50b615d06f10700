"""Learning after the reply: a reader or writer need not wait while a policy learns of what it did."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from kvstore.tiers.columns import IntArray
from kvstore.tiers.eviction.policy import Evictable, EvictionPolicy, Seconds

MOST_ROWS = 4096  # learnt of at once, under the lock


class Late(EvictionPolicy):
    """Another policy that learns of look-ups and inserts a little later: when the reply was sent (``catch_up``), and at
    the latest before it is asked or told anything else. In the same order and with the same times, so that it decides
    the same. ``catch_up`` must also come before the index changes who is whose child: learning reads that.
    """

    name: ClassVar[str] = "late"

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.index, self.tiers, self.features = policy.index, policy.tiers, policy.features
        self._waiting: list[Callable[[], None]] = []
        self._rows = 0

    @property
    def behind(self) -> bool:
        """There is something to catch up with."""
        return bool(self._waiting)

    def catch_up(self) -> None:
        """Learns of everything noted so far."""
        if self._waiting:
            waiting, self._waiting, self._rows = self._waiting, [], 0
            for learn in waiting:
                learn()

    def _note(self, learn: Callable[[], None], rows: int) -> None:
        self._waiting.append(learn)
        self._rows += rows
        if self._rows > MOST_ROWS:
            self.catch_up()

    # --- learning later -------------------------------------------------------------------------------------

    def inserted(self, rows: IntArray, parent_row: int, request: int, appended_tokens: int, now: float) -> None:
        self._note(partial(self.policy.inserted, rows, parent_row, request, appended_tokens, now), len(rows))

    def touched(self, path: IntArray, request: int, now: float, chain_blocks: int) -> None:
        if chain_blocks > len(path):  # may abandon a branch, which depends on leases and states as they are now
            self.catch_up()
            self.policy.touched(path, request, now, chain_blocks)
        else:
            self._note(partial(self.policy.touched, path, request, now, chain_blocks), len(path))

    # --- everything else at once ----------------------------------------------------------------------------

    def restored(self, rows: IntArray, ages: Seconds, now: float) -> None:
        self.catch_up()
        self.policy.restored(rows, ages, now)

    def removed(self, row: int) -> None:
        self.catch_up()
        self.policy.removed(row)

    def entered(self, rows: IntArray, tier: int) -> None:
        self.catch_up()
        self.policy.entered(rows, tier)

    def left(self, row: int, tier: int) -> None:
        self.catch_up()
        self.policy.left(row, tier)

    def last_use(self, rows: IntArray, tier: int = 0) -> Seconds:
        self.catch_up()
        return self.policy.last_use(rows, tier)

    def unused(self, row: int, now: float) -> float:
        self.catch_up()
        return self.policy.unused(row, now)

    def worth(self, rows: IntArray) -> Seconds:
        self.catch_up()
        return self.policy.worth(rows)

    def victim(self, evictable: Evictable, tier: int = 0) -> int | None:
        self.catch_up()
        return self.policy.victim(evictable, tier)

    def unpinned(self, row: int) -> None:
        self.catch_up()
        self.policy.unpinned(row)

    def score(self, row: int) -> float:
        self.catch_up()
        return self.policy.score(row)

    @property
    def nbytes(self) -> int:
        return self.policy.nbytes
