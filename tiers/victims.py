"""How long what is evicted was not used: what a block must beat to be worth a place here."""

from __future__ import annotations

import math

_SHARE = (
    1 / 16
)  # that the last victim has of it: a policy that weighs other things too evicts young ones among old ones


class VictimAge:
    """``seconds``: of the last victims, smoothed; ``last``: when the last one went, on the caller's clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.last = -math.inf

    def note(self, unused: float, now: float) -> None:
        """A block is evicted that was not used for so many seconds."""
        self.seconds += (unused - self.seconds) * (_SHARE if self.last > -math.inf else 1.0)
        self.last = now
