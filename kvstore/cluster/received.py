"""What came on the event streams of other nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Received:
    """Counts that only grow, of all streams of a cell together; one thread writes them. ``gaps``: times that something
    of a running node was missing, so that all had to be told anew; ``lost``: times that a stream broke."""

    batches: int = 0
    blocks: int = 0
    snapshots: int = 0
    gaps: int = 0
    lost: int = 0
