"""Slots inside segments: which are free, which segment serves which slot size. Pure bookkeeping, no bytes.

A space is a row of equal segments, addressed in granules. A segment is absent (not backed yet), pooled (ready,
serving no size) or dedicated to one slot class; one that became empty may be dedicated again to another class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import InternalError
from kvstore.tiers.tier import GRANULE, SlotArray

I64Array = npt.NDArray[np.int64]
_EMPTY = np.empty(0, np.uint32)


class SlotClass(NamedTuple):
    """What a segment serves: slots of ``granules`` x 4 KiB whose headers take ``stride`` bytes."""

    granules: int
    stride: int


class Usage(NamedTuple):
    """Slots that exist and slots given out."""

    slots: int
    used: int


class _Segment:
    """A dedicated segment: its free slots as a stack (the last is given out next), and which are used."""

    __slots__ = ("free", "kind", "slots", "top", "used")

    def __init__(self, kind: SlotClass, slots: int) -> None:
        self.kind = kind
        self.slots = slots
        self.used = np.zeros(slots, np.bool_)
        self.free = np.arange(slots - 1, -1, -1, dtype=np.uint32)
        self.top = slots

    def take(self, count: int) -> npt.NDArray[np.uint32]:
        """Indexes of up to ``count`` free slots, now used."""
        low = max(0, self.top - count)
        taken = self.free[low : self.top][::-1].copy()
        self.top = low
        self.used[taken] = True
        return taken

    def give(self, indexes: I64Array) -> None:
        if not self.used[indexes].all():
            raise InternalError(f"slots {indexes.tolist()} of a segment are freed, but some were free already")
        self.used[indexes] = False
        self.free[self.top : self.top + len(indexes)] = indexes
        self.top += len(indexes)

    def mark(self, indexes: I64Array) -> None:
        """Takes particular slots, at recovery."""
        self.used[indexes] = True
        free = np.flatnonzero(~self.used)[::-1]
        self.top = len(free)
        self.free[: self.top] = free


class SegmentSpace:
    """``segments`` segments of ``segment_granules`` granules (a power of two), the first at granule ``base``.

    ``dedicate(segment, kind)`` is called before a segment serves a class; answering False (no memory for its
    headers, say) leaves it unused. It may call ``withdraw`` or ``drop``. Not thread-safe: the owner's lock guards it.
    """

    def __init__(
        self, base: int, segment_granules: int, segments: int, dedicate: Callable[[int, SlotClass], bool]
    ) -> None:
        self.base = base
        self.segment_granules = segment_granules
        self.segments = segments
        self.granules_of = np.ones(segments, np.int64)  # slot size of each segment, for address arithmetic
        self._granules_at = memoryview(self.granules_of)
        self.pool: list[int] = []
        self._shift = segment_granules.bit_length() - 1
        self._dedicate = dedicate
        self._dedicated: dict[int, _Segment] = {}
        self._open: dict[SlotClass, list[int]] = {}  # dedicated segments that have free slots
        self._usage: dict[SlotClass, list[int]] = {}  # [slots, used]
        self._empty: set[int] = set()  # dedicated segments without a used slot
        self._closed: dict[int, SlotClass] = {}  # dedicated segments being emptied, and for which class

    # --- addresses -----------------------------------------------------------------------------------------

    def locate(self, slots: SlotArray) -> tuple[I64Array, I64Array]:
        """Segment and index in it of each slot address."""
        relative = slots.astype(np.int64) - self.base
        segment = relative >> self._shift
        return segment, (relative - (segment << self._shift)) // self.granules_of[segment]

    def locate_one(self, slot: int) -> tuple[int, int]:
        """Segment and index in it of one slot address."""
        relative = slot - self.base
        segment = relative >> self._shift
        return segment, (relative - (segment << self._shift)) // self._granules_at[segment]

    def addresses(self, segment: int, indexes: npt.NDArray[np.integer]) -> SlotArray:
        """Slot addresses of slot indexes of one segment."""
        start = self.base + (segment << self._shift)
        return (indexes.astype(np.int64) * int(self.granules_of[segment]) + start).astype(np.uint32)

    # --- segments ------------------------------------------------------------------------------------------

    def add(self, segment: int) -> None:
        """A segment is backed and may be handed out."""
        self.pool.append(segment)

    def withdraw(self, spare: int) -> int | None:
        """Takes a segment nobody uses (but not ``spare``) out of the space again, to give its memory back."""
        unused = [*self.pool, *(segment for segment in self._empty if segment not in self._closed)]
        found = next((segment for segment in unused if segment != spare), None)
        if found is not None:
            self.drop(found)
        return found

    def drop(self, segment: int) -> None:
        """Takes a pooled or empty segment out of the space."""
        self._leave(segment)

    def adopt(self, segment: int, kind: SlotClass, used: I64Array) -> None:
        """At recovery: ``segment`` serves ``kind`` and these of its slots are used."""
        self._take_exactly(segment, self._enter(segment, kind), used)

    def hold(self, slots: SlotArray) -> SlotArray:
        """At recovery: takes those of these addresses that are free slots of dedicated segments; answers them."""
        segments, indexes = self.locate(slots)
        exact = np.zeros(len(slots), np.bool_)
        for segment in np.unique(segments).tolist():
            if (found := self._dedicated.get(segment)) is not None:
                mine = np.flatnonzero((segments == segment) & (indexes < found.slots))
                free = mine[~found.used[indexes[mine]] & (self.addresses(segment, indexes[mine]) == slots[mine])]
                self._take_exactly(segment, found, indexes[free])
                exact[free] = True
        return slots[exact]

    def _take_exactly(self, segment: int, found: _Segment, indexes: I64Array) -> None:
        had = found.top
        found.mark(indexes)
        if found.top < found.slots:
            self._empty.discard(segment)
        self._usage[found.kind][1] += len(indexes)
        if had and not found.top:
            self._open[found.kind].remove(segment)

    def close(self, segment: int, promised: SlotClass) -> None:
        """No slot of a segment is given out any more; once it is empty, only ``promised`` gets it. See ``reopen``."""
        found = self._dedicated[segment]
        if found.top:
            self._open[found.kind].remove(segment)
        self._usage[found.kind][0] -= found.top
        self._closed[segment] = promised

    def reopen(self, segment: int) -> None:
        """A closed segment serves its own class again. Nothing, when it has gone to the other one meanwhile."""
        if self._closed.pop(segment, None) is None:
            return
        found = self._dedicated[segment]
        self._usage[found.kind][0] += found.top
        if found.top:
            self._open[found.kind].append(segment)

    def closed(self, segment: int) -> bool:
        """The segment is closed: it was not taken yet."""
        return segment in self._closed

    def unused(self) -> int | None:
        """A segment without a used slot, one that serves no class first; None when there is none."""
        return next(iter([*self.pool, *self._empty]), None)

    def used_slots(self, segment: int) -> SlotArray:
        """Addresses of the slots given out in a segment."""
        found = self._dedicated.get(segment)
        return _EMPTY if found is None else self.addresses(segment, np.flatnonzero(found.used))

    def dedicated(self) -> dict[int, tuple[SlotClass, int, int]]:
        """Class, slots and used slots of each dedicated segment."""
        return {at: (s.kind, s.slots, s.slots - s.top) for at, s in self._dedicated.items()}

    # --- slots ---------------------------------------------------------------------------------------------

    def allocate(self, kind: SlotClass, count: int) -> SlotArray:
        """Up to ``count`` slots; fewer when no segment has or can get more."""
        taken: list[SlotArray] = []
        missing = count
        while missing and (segment := self._segment_with_room(kind)) is not None:
            found = self._dedicated[segment]
            indexes = found.take(missing)
            self._empty.discard(segment)
            if not found.top:
                self._open[kind].remove(segment)
            self._usage[kind][1] += len(indexes)
            missing -= len(indexes)
            taken.append(self.addresses(segment, indexes))
        return taken[0] if len(taken) == 1 else np.concatenate(taken) if taken else _EMPTY

    def room(self, kind: SlotClass) -> int:
        """Slots that ``allocate`` can give, as far as segments are concerned."""
        slots, used = self._usage.get(kind, (0, 0))
        spare = len(self.pool) + (self._empty_of_another(kind) is not None)
        return slots - used + spare * (self.segment_granules // kind.granules)

    def free(self, slots: SlotArray) -> None:
        """Takes slots back. Raises InternalError when one was free."""
        segments, indexes = self.locate(slots)
        if len(slots) > 1 and (segments != segments[0]).any():
            for segment in np.unique(segments).tolist():
                self._give(segment, indexes[segments == segment])
        elif len(slots):
            self._give(int(segments[0]), indexes)

    def usage(self, kind: SlotClass | None = None) -> Usage:
        """Slots and used slots of one class, or of all."""
        rows = list(self._usage.values()) if kind is None else [self._usage.get(kind, [0, 0])]
        return Usage(sum(row[0] for row in rows), sum(row[1] for row in rows))

    def classes(self) -> list[SlotClass]:
        """Classes that a segment serves now."""
        return [kind for kind, (slots, _) in self._usage.items() if slots]

    @property
    def used_granules(self) -> int:
        """Granules of slots given out."""
        return sum(kind.granules * used for kind, (_, used) in self._usage.items())

    @property
    def slot_granules(self) -> int:
        """Granules of all slots that there are."""
        return sum(kind.granules * slots for kind, (slots, _) in self._usage.items())

    def _give(self, segment: int, indexes: I64Array) -> None:
        found = self._dedicated[segment]
        if segment in self._closed:
            self._usage[found.kind][0] -= len(indexes)
        elif not found.top:
            self._open[found.kind].append(segment)
        found.give(indexes)
        if found.top == found.slots:
            self._empty.add(segment)
        self._usage[found.kind][1] -= len(indexes)

    def _segment_with_room(self, kind: SlotClass) -> int | None:
        opened = self._open.get(kind)
        if opened:
            return opened[-1]
        for segment in (self.pool[-1] if self.pool else None, self._empty_of_another(kind)):
            if segment is not None and self._dedicate(segment, kind):
                self._leave(segment)
                self._enter(segment, kind)
                return segment
        return None

    def _empty_of_another(self, kind: SlotClass) -> int | None:
        for segment in self._empty:
            if self._dedicated[segment].kind != kind == self._closed.get(segment, kind):
                return segment
        return None

    def _leave(self, segment: int) -> None:
        found = self._dedicated.pop(segment, None)
        if found is None:
            self.pool.remove(segment)
            return
        self._empty.discard(segment)
        if self._closed.pop(segment, None) is None:
            self._open[found.kind].remove(segment)
            self._usage[found.kind][0] -= found.slots

    def _enter(self, segment: int, kind: SlotClass) -> _Segment:
        found = _Segment(kind, self.segment_granules // kind.granules)
        self._dedicated[segment] = found
        self._empty.add(segment)
        self.granules_of[segment] = kind.granules
        self._open.setdefault(kind, []).append(segment)
        self._usage.setdefault(kind, [0, 0])[0] += found.slots
        return found


@lru_cache(maxsize=1024)
def slot_class(length: int, chunks: int) -> SlotClass:
    """Class of parts of ``length`` bytes with ``chunks`` checksums: headers never take over 1/16 of the slots."""
    stride = -(-(128 + 8 * chunks) // 64) * 64
    return SlotClass(-(-max(length, 16 * stride) // GRANULE), stride)
