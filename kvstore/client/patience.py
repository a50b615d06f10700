"""How long one of several nodes may take, so that time is left for another one."""

from __future__ import annotations

import time

ANSWER = 0.5  # seconds, and what the bytes take at this rate:
SLOWEST = 32 << 20  # bytes a second
_PART = 0.5  # of the time left


def patience(deadline: float, size: int, waits: bool = False) -> float:
    """Until when (time.monotonic). ``waits``: the node itself waits for others before it answers."""
    now = time.monotonic()
    part = max(0.0, (deadline - now) * _PART)
    return now + (part if waits else min(part, ANSWER + size / SLOWEST))
