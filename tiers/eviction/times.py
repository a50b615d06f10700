"""When the stamps of an order were given out: about a mark a second, however many stamps there are."""

from __future__ import annotations

from bisect import bisect_right

_MARKS = 4096  # at most; then every other one goes, and they come half as often


class Times:
    """Stamps and times only grow."""

    def __init__(self) -> None:
        self._every = 1.0  # seconds
        self._stamps: list[int] = []
        self._at: list[float] = []

    def note(self, stamp: int, now: float) -> None:
        """A stamp was given out."""
        if self._at and now - self._at[-1] < self._every:
            return
        self._stamps.append(stamp)
        self._at.append(now)
        if len(self._at) >= _MARKS:
            self._every *= 2
            self._stamps, self._at = self._stamps[::2], self._at[::2]

    def of(self, stamp: int, now: float) -> float:
        """When a stamp was given out, or a little before; before the first mark that is the time of it."""
        return self._at[max(0, bisect_right(self._stamps, stamp) - 1)] if self._at else now
