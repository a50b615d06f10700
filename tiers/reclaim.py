"""Which segment changes its slot size: the pure part of reclaiming. What then happens is in reclaiming.py.

Block sizes change over a node's life (another model, another dtype). A segment serves one slot size, so one that is
worth little must be emptied before it can serve another: the segment with the least total keep value goes, which is
the least per byte, as all segments are equal.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvstore.tiers.segments import SlotClass

MARGIN = 0.8  # a segment of another class must be worth less than this share of the least of the own class
SOFT_PIN_WORTH = 1e6  # so many times more is a soft-pinned block worth
Take = Callable[[int], int]  # lets a row go; how many slots of the class that frees, 0: it cannot go now


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment serving a class. ``worth``: keep value of all that is in it. ``movable``: everything in it may be
    moved now: no lease, no unfinished put, nothing an orphan session may still touch."""

    segment: int
    kind: SlotClass
    slots: int
    used: int
    worth: float
    movable: bool


def choose(segments: Sequence[SegmentFacts], wanted: SlotClass, spare: dict[SlotClass, int]) -> SegmentFacts | None:
    """The segment to empty for ``wanted``; None when its own blocks are worth the least, or nothing can be moved.

    Among the segments of the class that is worth the least, the one with the fewest slots to move goes.
    ``spare``: free slots by class.
    """
    own = [one.worth for one in segments if one.kind == wanted]
    others = [one for one in segments if one.kind != wanted and one.movable]
    least = min(others, key=lambda one: one.worth, default=None)
    if least is None or (own and least.worth >= MARGIN * min(own)):
        return None
    bound = min(own) if own else float("inf")
    alike = [one for one in others if one.kind == least.kind and one.worth <= max(least.worth, bound * MARGIN)]
    fits = [one for one in alike if one.used <= spare.get(one.kind, 0) - (one.slots - one.used)]
    return min(fits or [least], key=lambda one: (one.used, one.worth))


def trim(
    heap: list[tuple[float, int]], worth: Callable[[int], float | None], parent: Callable[[int], int], let_go: Take,
    slots: int,
) -> int:  # fmt: skip
    """Lets leaves go, the least worth first and parents after their last child, until ``slots`` slots are free.

    ``heap``: leaves as (worth, row), of which those that were looked at are taken out, so that a further call goes on.
    ``worth``: of a row that has become a leaf and may go, else None. How many slots were freed.
    """
    freed = 0
    while heap and freed < slots:
        _, row = heapq.heappop(heap)
        above = parent(row)
        got = let_go(row)
        freed += got
        if got and above >= 0 and (value := worth(above)) is not None:
            heapq.heappush(heap, (value, above))
    return freed


def batches(rows: Iterable[tuple[int, int]], most: int, most_bytes: int) -> Iterator[list[int]]:
    """Rows of (row, bytes) in batches of at most ``most`` rows and, but for single ones, ``most_bytes`` bytes."""
    batch: list[int] = []
    size = 0
    for row, length in rows:
        if batch and (len(batch) == most or size + length > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += length
    if batch:
        yield batch
