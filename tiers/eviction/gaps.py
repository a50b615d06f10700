"""The store's own sense of time: how long until a conversation comes back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

START_SECONDS = 300.0
LEAST_SECONDS, MOST_SECONDS = 30.0, 1000.0
FACTOR = 2.5  # times the median return gap
_KEPT = 512  # gaps
_EVERY = 64


class ReturnGaps:
    """``age_constant``: 2.5 times the median of the last 512 return gaps, 30 to 1,000 s; 300 s until 64 were seen."""

    def __init__(self) -> None:
        self.age_constant = START_SECONDS
        self._gaps: npt.NDArray[np.float32] = np.zeros(_KEPT, np.float32)
        self._seen = 0

    def add(self, seconds: float) -> None:
        """A tail was asked for again ``seconds`` after the last time."""
        self._gaps[self._seen % _KEPT] = seconds
        self._seen += 1
        if self._seen % _EVERY == 0:
            kept = np.sort(self._gaps[: min(self._seen, _KEPT)])
            median = float(kept[len(kept) // 2])
            self.age_constant = min(max(FACTOR * median, LEAST_SECONDS), MOST_SECONDS)
