"""The slot table: what each slot of the tier is in right now. About 10 bytes a slot, no object per slot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import InternalError, InvalidArgument
from kvstore.tiers.nvme.format import stride_bytes
from kvstore.tiers.segments import SegmentSpace, SlotClass, Usage
from kvstore.tiers.tier import GRANULE, SlotArray, Slots, U32Array

GENERATION_WINDOW = 1 << 16  # generations handed out before the next limit must be on disk
_NONE = np.empty(0, np.uint32)


class State(IntEnum):
    """State of a slot. GIVEN: allocated; BUSY: being written; STORED: its bytes are complete; DOOMED: freed while
    being written; LIMBO: freed, and not given out again until the removal of its entry is durable; BAD: the disk
    failed here; RETIRED: a bad one that was freed, not given out again until the disk was replaced or the node
    restarted."""

    FREE = 0
    GIVEN = 1
    BUSY = 2
    STORED = 3
    DOOMED = 4
    LIMBO = 5
    BAD = 6
    RETIRED = 7


class SlotTable:
    """Allocation, generation and state of slots. Thread-safe; nothing here waits for a device."""

    def __init__(self, segments: int, segment_bytes: int) -> None:
        self._lock = threading.Lock()
        self._space = SegmentSpace(0, segment_bytes // GRANULE, segments, self._dedicate)
        self._states: dict[int, npt.NDArray[np.uint8]] = {}
        self._generations: dict[int, U32Array] = {}
        self._segment_bytes = segment_bytes
        self.segment_granules = segment_bytes // GRANULE
        self._limbo = 0
        self._bad = 0
        self.admit: Callable[[int], bool] = lambda slots: True  # has the index room for that many slots in all?
        self.generation = 1  # the next to be given out
        self.generation_limit = 1  # durable: a restart continues there

    # --- segments ------------------------------------------------------------------------------------------

    def add(self, segment: int) -> None:
        """A segment's file is there and may be used."""
        with self._lock:
            self._space.add(segment)

    def pooled(self) -> int:
        """Segments that serve no slot size yet."""
        return len(self._space.pool)

    def adopt(self, segment: int, granules: int, slots: SlotArray, generations: U32Array) -> None:
        """At recovery: these slots of a segment are stored."""
        with self._lock:
            self._enter(segment, granules)
            indexes = (slots.astype(np.int64) - segment * (self.segment_granules)) // granules
            self._space.adopt(segment, SlotClass(granules, 0), indexes)
            self._states[segment][indexes] = State.STORED
            self._generations[segment][indexes] = generations

    def _dedicate(self, segment: int, kind: SlotClass) -> bool:
        more = self.segment_granules // kind.granules - len(self._states.get(segment, ()))
        if not self.admit(self._space.usage().slots + more):
            return False
        self._enter(segment, kind.granules)
        return True

    def _enter(self, segment: int, granules: int) -> None:
        count = self._segment_bytes // (granules * GRANULE)
        self._states[segment] = np.zeros(count, np.uint8)
        self._generations[segment] = np.zeros(count, np.uint32)

    def dedicated(self) -> dict[int, tuple[SlotClass, int, int]]:
        """Class, slots and slots that belong to somebody, of each segment that serves a class."""
        with self._lock:
            return {at: (kind, slots, self._held(at)) for at, (kind, slots, _) in self._space.dedicated().items()}

    def held(self, segment: int) -> int:
        """Slots of a segment that belong to somebody or were set aside: not free, nor about to be."""
        with self._lock:
            return self._held(segment)

    def _held(self, segment: int) -> int:
        states = self._states.get(segment)
        return 0 if states is None else int(np.count_nonzero((states != State.FREE) & (states != State.LIMBO)))

    def close(self, segment: int, promised: SlotClass) -> None:
        """Gives out no more slots of a segment; once it is empty, only ``promised`` gets it, until it is reopened."""
        with self._lock:
            self._space.close(segment, promised)

    def reopen(self, segment: int) -> None:
        """A closed segment that no other class has taken serves its own one again."""
        with self._lock:
            self._space.reopen(segment)

    def closed(self, segment: int) -> bool:
        """The segment is closed: it was not taken yet."""
        with self._lock:
            return self._space.closed(segment)

    def room(self, kind: SlotClass) -> int:
        """Slots of a class that can be had now."""
        with self._lock:
            return self._space.room(kind)

    def withdraw(self) -> int | None:
        """Takes a segment out that nobody uses, to give its disk space back; None when there is none."""
        with self._lock:
            found = self._space.unused()
            if found is not None:
                self._space.drop(found)
                self._states.pop(found, None)
                self._generations.pop(found, None)
            return found

    # --- slots ---------------------------------------------------------------------------------------------

    def kind(self, slot_bytes: int, chunks: int) -> SlotClass:
        """Class of such slots. Raises InvalidArgument when a segment is too small for one."""
        kind = SlotClass(stride_bytes(slot_bytes, chunks) // GRANULE, 0)  # trailers lie in the slots
        if kind.granules * GRANULE > self._segment_bytes:
            raise InvalidArgument(
                f"a slot of {slot_bytes} bytes with {chunks} checksums does not fit into a segment of "
                f"{self._segment_bytes} bytes; raise the NVMe segment_bytes",
                slot_bytes=slot_bytes,
                segment_bytes=self._segment_bytes,
            )
        return kind

    def allocate(self, slot_bytes: int, chunks: int, count: int) -> Slots:
        """Up to ``count`` slots with room for ``slot_bytes`` and a trailer of ``chunks`` checksums."""
        kind = self.kind(slot_bytes, chunks)
        with self._lock:
            count = min(count, self.generation_limit - self.generation)
            if count <= 0:
                return Slots(_NONE, _NONE)
            slots = self._space.allocate(kind, count)
            generations = np.arange(self.generation, self.generation + len(slots), dtype=np.uint32)
            self.generation += len(slots)
            for segment, at, indexes in self._by_segment(slots):
                self._states[segment][indexes] = State.GIVEN
                self._generations[segment][indexes] = generations[at]
            return Slots(slots, generations)

    def release(self, slots: SlotArray) -> None:
        """Removal is durable: the slots may be given out again."""
        with self._lock:
            for segment, _, indexes in self._by_segment(slots):
                self._states[segment][indexes] = State.FREE
            self._space.free(slots)
            self._limbo -= len(slots)

    def retire(self, slots: SlotArray, bad: bool = False) -> SlotArray:
        """Freed by the caller. Gives those to be given out again once their removal is durable; one that is being
        written follows when that ends, a bad one never. Raises InternalError when one was not given out."""
        now: list[SlotArray] = []
        with self._lock:
            for segment, at, indexes in self._by_segment(slots):
                states = self._states[segment]
                old = states[indexes]
                if np.isin(old, (State.FREE, State.LIMBO, State.DOOMED, State.RETIRED)).any():
                    raise InternalError(f"NVMe slots {slots[at].tolist()} are freed, but some were free already")
                failed = (old == State.BAD) | bad
                states[indexes] = np.where(
                    old == State.BUSY, State.DOOMED, np.where(failed, State.RETIRED, State.LIMBO)
                )
                free = (old != State.BUSY) & ~failed
                now.append(slots[at][free])
                self._limbo += int(free.sum())
                self._bad += int((failed & (old != State.BUSY)).sum())
        return np.concatenate(now) if now else _NONE

    def forget(self, slots: SlotArray) -> None:
        """The slots are no longer stored, but stay given out."""
        with self._lock:
            for segment, _, indexes in self._by_segment(slots):
                states = self._states[segment]
                stored = states[indexes] == State.STORED
                states[indexes[stored]] = State.GIVEN

    def forgive(self) -> SlotArray:
        """The disk was replaced: bad slots are tried again. Gives the freed ones, now in limbo."""
        freed: list[SlotArray] = []
        with self._lock:
            for segment, states in self._states.items():
                states[states == State.BAD] = State.GIVEN
                indexes = np.flatnonzero(states == State.RETIRED)
                states[indexes] = State.LIMBO
                freed.append(self._space.addresses(segment, indexes))
            self._limbo += self._bad
            self._bad = 0
        return np.concatenate(freed) if freed else _NONE

    def move(self, slot: int, generation: int, old: State, new: State) -> bool:
        """Changes the state of one slot if it still is ``old`` in this generation."""
        with self._lock:
            found = self._find(slot)
            if found is None:
                return False
            segment, index = found
            states = self._states[segment]
            if self._generations[segment][index] != generation or states[index] != old:
                return False
            states[index] = new
            self._limbo += new == State.LIMBO
            return True

    def state(self, slot: int, generation: int) -> State:
        """State of a slot in this generation; FREE when the generation is another."""
        with self._lock:
            found = self._find(slot)
            if found is None or self._generations[found[0]][found[1]] != generation:
                return State.FREE
            return State(self._states[found[0]][found[1]])

    def stored(self) -> Iterator[Slots]:
        """The stored slots, a segment at a time, as they are when each is reached."""
        for segment in sorted(self._states):
            with self._lock:
                if segment not in self._states:  # withdrawn
                    continue
                indexes = np.flatnonzero(self._states[segment] == State.STORED)
                found = Slots(self._space.addresses(segment, indexes), self._generations[segment][indexes])
            yield found

    def segments_of(self, slots: SlotArray) -> list[int]:
        """Segments that these slots lie in."""
        return [int(number) for number in np.unique(slots // self.segment_granules)]

    def granules(self, slots: SlotArray) -> U32Array:
        """Granules that each slot takes."""
        return self._space.granules_of[self._space.locate(slots)[0]].astype(np.uint32)

    # --- figures -------------------------------------------------------------------------------------------

    @property
    def limbo(self) -> int:
        """Slots waiting for their removal to be durable."""
        return self._limbo

    @property
    def bad(self) -> int:
        """Slots set aside because the disk failed there."""
        return self._bad

    @property
    def in_use(self) -> int:
        """Slots that belong to somebody: not free, nor on their way to be, nor set aside."""
        with self._lock:
            return self._space.usage().used - self._limbo - self._bad

    @property
    def share_in_use(self) -> float:
        """The share of all slots that belongs to somebody, by bytes: an empty segment counts whatever it served."""
        with self._lock:
            used, space = self._space.usage().used, self._space.slot_granules
            mine = (used - self._limbo - self._bad) / used if used else 0.0
            return mine * self._space.used_granules / space if space else 0.0

    def usage(self) -> Usage:
        """Slots that exist and slots not free."""
        with self._lock:
            return self._space.usage()

    @property
    def used_bytes(self) -> int:
        """Bytes of slots not free."""
        with self._lock:
            return self._space.used_granules * GRANULE

    def _find(self, slot: int) -> tuple[int, int] | None:
        segment, within = divmod(slot, self.segment_granules)
        if segment not in self._states:
            return None
        index, rest = divmod(within, int(self._space.granules_of[segment]))
        return None if rest or index >= len(self._states[segment]) else (segment, index)

    def _by_segment(
        self, slots: SlotArray
    ) -> Iterator[tuple[int, npt.NDArray[np.bool_] | slice, npt.NDArray[np.int64]]]:
        if not len(slots):
            return
        segments, indexes = self._space.locate(slots)
        if (segments == segments[0]).all():
            yield int(segments[0]), slice(None), indexes
            return
        for segment in np.unique(segments).tolist():
            at = segments == segment
            yield segment, at, indexes[at]
