"""How long what is evicted was not used: what a block must beat to be worth a place here."""

from __future__ import annotations

_SHARE = (
    1 / 16
)  # that the last victim has of it: a policy that weighs other things too evicts young ones among old ones


class VictimAge:
    """``seconds``: of the last victims, smoothed; 0 before the first."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._any = False

    def note(self, unused: float) -> None:
        """A block is evicted that was not used for so many seconds."""
        self.seconds += (unused - self.seconds) * (_SHARE if self._any else 1.0)
        self._any = True
