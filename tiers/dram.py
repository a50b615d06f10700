"""The DRAM tier: slots in the segments of the memory file, which clients on this host map."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from kvstore.core.errors import InvalidArgument
from kvstore.tiers.headers import HeaderTable, SegmentTable, fresh_generation
from kvstore.tiers.memfile import MemoryFile
from kvstore.tiers.segments import I64Array, SegmentSpace, SlotClass, slot_class
from kvstore.tiers.tier import GRANULE, Entries, SlotArray, Slots, Tier, TierKind, TierStat, Transfer, U64Array

log = logging.getLogger(__name__)
_NO_SLOTS = Slots(np.empty(0, np.uint32), np.empty(0, np.uint32))


class DramTier(Tier):
    """Slot addresses are granules from the start of the memory file, so byte offset = slot x 4096; 0 is never a slot.

    Only segments backed with memory are handed out: ``prefault`` backs the next one (a background thread of the
    store calls it). When the file system is full the tier has fewer segments and ``trouble`` says so.
    ``lock`` is the store's lock, which guards the bookkeeping.
    """

    kind: ClassVar[TierKind] = TierKind.DRAM
    name: ClassVar[str] = "dram"

    def __init__(self, file: MemoryFile, lock: threading.Lock) -> None:
        self.file = file
        self.layout = file.layout
        self.trouble = ""
        self._lock = lock
        self._space = SegmentSpace(
            self.layout.segment_at(0) // GRANULE,
            self.layout.segment_bytes // GRANULE,
            self.layout.segments,
            self._dedicate,
        )
        self._headers = HeaderTable(file, self._space)
        self._table = SegmentTable(file)
        self._backed: set[int] = set()
        self._left: list[int] = []  # not dedicated, but backed since the last boot: taken first
        self._header_bytes: dict[int, int] = {}  # by dedicated segment
        self._header_need = self.layout.page  # memory to keep for the headers of one more segment
        self._data = memoryview(file.map)
        self._read_only = self._data.toreadonly()

    # --- Tier ----------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        return self.layout.segments * self.layout.segment_bytes

    def allocate(self, slot_bytes: int, chunks: int, count: int) -> Slots:
        slots = self._space.allocate(self.slot_class(slot_bytes, chunks), count)
        if not len(slots):
            return _NO_SLOTS
        return Slots(slots, self._headers.renew(slots))

    def allocate_open(self, slot_bytes: int, chunks: int) -> Slots:
        """One slot in a segment that serves its class already, or none."""
        kind = self.slot_class(slot_bytes, chunks)
        return self.allocate(slot_bytes, chunks, 1) if self.room_of_open(kind) else _NO_SLOTS

    def slot_class(self, slot_bytes: int, chunks: int) -> SlotClass:
        """Class that serves such parts. Raises InvalidArgument when a segment is too small for one."""
        kind = slot_class(slot_bytes, chunks)
        if kind.granules > self._space.segment_granules:
            raise InvalidArgument(
                f"a part of {slot_bytes} bytes with {chunks} chunks needs a slot of {kind.granules * GRANULE} bytes, "
                f"but a segment has {self.layout.segment_bytes}; raise segment_bytes",
                got=slot_bytes,
                segment_bytes=self.layout.segment_bytes,
            )
        return kind

    def free(self, slots: SlotArray) -> None:
        self._headers.clear(slots)
        self._space.free(slots)

    def record(self, entries: Entries) -> None:
        self._headers.write(entries)

    def forget(self, slots: SlotArray) -> None:
        self._headers.clear(slots)

    def checksums(self, slots: SlotArray, chunks: range) -> U64Array:
        return self._headers.checksums(slots, chunks)

    def stamp(self, slots: SlotArray, stamp: int) -> None:
        """Notes the last use of slots, which orders eviction after a restart."""
        self._headers.stamp(slots, stamp)

    def pin(self, slots: SlotArray, value: int) -> None:
        """Notes a value (below 2^40) with committed slots, which a restart finds again; 0 forgets it."""
        self._headers.pin(slots, value)

    def pins(self, slots: SlotArray) -> list[tuple[int, int]]:
        """Values noted with slots, as (position, value)."""
        return self._headers.pins(slots)

    def relocated(self, old: int, new: int, generation: int) -> None:
        """The bytes of a committed slot were copied to one just given out: a restart will find them there as well."""
        self._headers.copy(old, new, generation)

    def write(self, transfers: Sequence[Transfer]) -> None:
        for slot, offset, buffer in transfers:
            start = slot * GRANULE + offset
            self._data[start : start + buffer.nbytes] = buffer.cast("B")

    def read(self, transfers: Sequence[Transfer]) -> None:
        for slot, offset, buffer in transfers:
            start = slot * GRANULE + offset
            buffer.cast("B")[:] = self._data[start : start + buffer.nbytes]

    def view(self, slot: int, length: int) -> memoryview:
        """Read-only bytes of a slot."""
        return self._read_only[slot * GRANULE : slot * GRANULE + length]

    def place(self, slot: int, length: int) -> memoryview:
        """Writable bytes of a slot."""
        return self.writable(slot * GRANULE, length)

    def writable(self, offset: int, length: int) -> memoryview:
        """Writable bytes at a byte offset of the memory file, for puts that come over a network."""
        return self._data[offset : offset + length]

    def readable(self, offset: int, length: int) -> memoryview:
        """Read-only bytes at a byte offset of the memory file."""
        return self._read_only[offset : offset + length]

    def stat(self) -> TierStat:
        usage = self._space.usage()
        return TierStat(
            name=self.name, capacity_bytes=self.capacity, used_bytes=self._space.used_granules * GRANULE,
            backed_bytes=self.file.backed_bytes, segments=self.layout.segments, segments_ready=len(self._backed),
            slots=usage.slots, slots_used=usage.used, trouble=self.trouble,
        )  # fmt: skip

    def close(self) -> None:
        self._data.release()
        self._read_only.release()
        del self._headers, self._table

    # --- pressure ------------------------------------------------------------------------------------------

    def shortage(self, high: float, low: float) -> list[tuple[SlotClass, int]]:
        """Slot classes that are over ``high`` of their slots and cannot grow, and how many to free to reach ``low``."""
        if self._space.pool or self.growing:
            return []
        found = []
        for kind in self._space.classes():
            slots, used = self._space.usage(kind)
            if used > high * slots and self._space.room(kind) == slots - used:
                found.append((kind, max(1, used - int(low * slots))))
        return found

    @property
    def growing(self) -> bool:
        """More segments can still be backed."""
        return not self.trouble and self._next_unbacked() is not None

    def room(self, kind: SlotClass) -> int:
        """Slots of a class that can be given out now."""
        return self._space.room(kind)

    def room_of_open(self, kind: SlotClass) -> int:
        """Free slots of a class in segments that serve it already and are not being emptied."""
        usage = self._space.usage(kind)
        return usage.slots - usage.used

    def classes(self) -> dict[int, tuple[SlotClass, int, int]]:
        """Class, slots and used slots of each dedicated segment."""
        return self._space.dedicated()

    def used_slots(self, segment: int) -> SlotArray:
        """Slots given out in a segment."""
        return self._space.used_slots(segment)

    def close_segment(self, segment: int, promised: SlotClass) -> None:
        """Gives out no more slots of a segment; once it is empty, only ``promised`` gets it, until it is reopened."""
        self._space.close(segment, promised)

    def reopen_segment(self, segment: int) -> None:
        """A closed segment that no other class has taken serves its own one again."""
        self._space.reopen(segment)

    def segment_of(self, slots: SlotArray) -> I64Array:
        """Segment that each slot lies in."""
        return self._space.locate(slots)[0]

    # --- backing segments with memory ----------------------------------------------------------------------

    def prefault(self) -> bool:
        """Backs one more segment and adds it to the pool. Slow; called without the lock. False: nothing left to do."""
        with self._lock:
            segment = self._next_unbacked()
        if segment is None or self.trouble:
            return False
        try:
            self.file.populate(self.layout.segment_at(segment), self.layout.segment_bytes)
        except OSError as error:
            self._give_up(segment, error)
            return False
        with self._lock:
            self._backed.add(segment)
            self._space.add(segment)
        return True

    def _give_up(self, segment: int, error: OSError) -> None:
        self.file.discard(self.layout.segment_at(segment), self.layout.segment_bytes)
        self.trouble = (
            f"{self.file.path.parent} has no memory for segment {len(self._backed) + 1} of {self.layout.segments} "
            f"({error.strerror}): the DRAM tier has {len(self._backed) * self.layout.segment_bytes} bytes"
        )
        log.warning("%s", self.trouble)

    def _next_unbacked(self) -> int | None:
        if not self._fits(1, self._header_need):
            return None
        while self._left and self._left[-1] in self._backed:
            self._left.pop()
        if self._left:
            return self._left[-1]
        return next((at for at in range(self.layout.segments) if at not in self._backed), None)

    def _fits(self, more_segments: int, more_headers: int) -> bool:
        data = (len(self._backed) + more_segments) * self.layout.segment_bytes
        headers = sum(self._header_bytes.values()) + more_headers
        return self.layout.tables_bytes + data + headers <= self.layout.capacity

    def _dedicate(self, segment: int, kind: SlotClass) -> bool:
        """Clears the header area of a segment and writes its record. False: no memory for headers."""
        had, need = self._header_bytes.get(segment, 0), self.layout.headers_backed(*kind)
        start = self.layout.header_area_at(segment)
        if not self._make_header_room(segment, need - had):
            return False
        try:
            self.file.populate(start + had, max(0, need - had))
        except OSError as error:
            self.trouble = f"no memory for the headers of a segment ({error.strerror})"
            log.warning("%s", self.trouble)
            return False
        generation = self._retire(segment)
        self.file.words[start // 8 : (start + need) // 8] = 0
        self.file.discard(start + need, self.layout.header_area - need)
        self._header_bytes[segment] = need
        self._headers.serve(segment, kind)
        self._headers.start(segment, self._space.segment_granules // kind.granules, generation)
        self._table.write(segment, kind, generation)
        return True

    def _retire(self, segment: int) -> int:
        """Ends the segment's present class; the first generation for its next one."""
        known = self._table.read(segment)
        if known is None:
            return fresh_generation()
        slots = self._space.segment_granules // known[0].granules
        generation = self._headers.newest_generation(segment, slots) + 1
        self._table.clear(segment)
        return generation & 0xFFFFFFFF

    def _make_header_room(self, segment: int, need: int) -> bool:
        """Headers share the capacity with the segments: an unused one gives its memory back when they need it, and at
        last ``segment`` itself (False), so that the next to be emptied finds room."""
        while not self._fits(0, need):
            given = self._space.withdraw(spare=segment)
            if given is None:
                self._space.drop(segment)
                self._unback(segment)
                self._header_need = need
                return False
            self._unback(given)
        return True

    def _unback(self, segment: int) -> None:
        self._table.clear(segment)
        self._backed.discard(segment)
        self._header_bytes.pop(segment, None)
        self.file.discard(self.layout.segment_at(segment), self.layout.segment_bytes)
        self.file.discard(self.layout.header_area_at(segment), self.layout.header_area)

    # --- recovery ------------------------------------------------------------------------------------------

    def recover(self) -> Iterator[Entries]:
        for segment in range(self.layout.segments):
            known = self._table.read(segment)
            if known is None:
                self._table.clear(segment)
                self._look_for_left(segment)
                continue
            kind = known[0]
            self._backed.add(segment)
            self._header_bytes[segment] = self.layout.headers_backed(*kind)
            self._headers.serve(segment, kind)
            self._space.granules_of[segment] = kind.granules
            entries = self._headers.recorded(segment, kind)
            self._space.adopt(segment, kind, self._space.locate(entries.slots)[1])
            if len(entries):
                yield entries

    def _look_for_left(self, segment: int) -> None:
        """Memory of a segment that nothing is in: to be used before other memory is taken."""
        start = self.layout.segment_at(segment)
        if self.layout.page > GRANULE:  # hugetlbfs cannot tell
            self.file.discard(start, self.layout.segment_bytes)
        elif self.file.is_backed(start, self.layout.segment_bytes):
            self._left.append(segment)

    def hold(self, slots: SlotArray) -> SlotArray:
        """At recovery: takes free slots that an orphan session may still write to. Answers those it took."""
        inside = (slots >= self.layout.segment_at(0) // GRANULE) & (slots < self.layout.file_bytes // GRANULE)
        return self._space.hold(np.unique(slots[inside]))
