"""Who may be written to NVMe: a score threshold, steered so that a write budget is met. Pure: no clock, no I/O."""

from __future__ import annotations

_WINDOW = 60.0  # seconds over which the rate of writes is smoothed; unused budget is kept this long
_STEP = 1.0  # seconds between two corrections of the threshold
_UP, _DOWN = 1.1, 1 / 1.05
_LEAST = 0.1  # where a threshold of 0 starts to rise: one-shot documents score about this
_MOST = 8.0
_SLACK = 0.9  # of the budget: below it the threshold comes down again
DAY = 86_400.0


def write_budget(bytes_a_second: int, drive_writes_a_day: float, capacity: int) -> float:
    """Bytes a second that both bounds allow; 0: no bound."""
    bounds = [float(bytes_a_second), drive_writes_a_day * capacity / DAY]
    return min((bound for bound in bounds if bound > 0), default=0.0)


class Admission:
    """``threshold`` never falls below ``base``. ``budget``: bytes a second, 0: none. Times in seconds of any steady
    clock."""

    def __init__(self, base: float, budget: float, now: float) -> None:
        self.base, self.budget = base, budget
        self.threshold = base
        self.rate = 0.0  # bytes a second, smoothed
        self._room = budget * _WINDOW
        self._since, self._written = now, 0
        self._now = now

    def refuses(self, score: float, size: int, now: float) -> str:
        """Why ``size`` bytes of this score are not written: "score", "budget", or "" when they may be."""
        if self.budget:
            self._steer(now)
            if self._room < size:
                return "budget"
        return "score" if score < self.threshold else ""

    def wrote(self, size: int, now: float) -> None:
        """So many bytes were let in."""
        if self.budget:
            self._steer(now)
            self._room -= size
        self._written += size

    def _steer(self, now: float) -> None:
        elapsed = now - self._now
        self._now = now
        self._room = min(self._room + elapsed * self.budget, self.budget * _WINDOW)
        span = now - self._since
        if span < _STEP:
            return
        weight = min(1.0, span / _WINDOW)
        self.rate += weight * (self._written / span - self.rate)
        self._since, self._written = now, 0
        if self.rate > self.budget or self._room < self.budget:
            self.threshold = min(max(self.threshold, _LEAST) * _UP, _MOST)
        elif self.rate < _SLACK * self.budget:
            lower = self.threshold * _DOWN
            self.threshold = self.base if lower < max(self.base, _LEAST) else lower
