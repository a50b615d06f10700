"""Recovery: the index becomes batches of entries and a slot table. No payload is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from kvstore.tiers.nvme.format import ENTRY, EntryArray, intact
from kvstore.tiers.nvme.slots import SlotTable
from kvstore.tiers.tier import GRANULE, Entries, SlotArray


class Recovery:
    """Checks entries against each other and against the segments there are; keeps what fails in ``dropped``."""

    def __init__(self, table: SlotTable, segment_bytes: int, segments: list[int], namespaces: dict[int, int]) -> None:
        self._table = table
        self._granules = segment_bytes // GRANULE
        self._segments = np.array(segments, np.int64)
        self._parts = np.zeros(1 << 16, np.uint8)  # parts of each namespace number, 0: unknown
        for number, parts in namespaces.items():
            self._parts[number] = parts
        self._current: list[EntryArray] = []  # of the segment being read, which a batch may cut
        self.dropped: list[SlotArray] = []
        self.seen: set[int] = set()  # segments that serve a slot size

    def batches(self, scan: Iterator[bytes]) -> Iterator[Entries]:
        """Entries by slot; the table has them all when this ends."""
        for packed in scan:
            entries: EntryArray = np.frombuffer(packed, ENTRY)
            yield columns(self._adopt(self._check(entries)))
        self._flush()

    def _check(self, entries: EntryArray) -> EntryArray:
        segment = entries["slot"].astype(np.int64) // self._granules
        within = entries["slot"] % self._granules
        granules = np.maximum(entries["granules"], 1)
        good = intact(entries) & np.isin(segment, self._segments) & (within % granules == 0)
        good &= (within + granules <= self._granules) & (entries["part"] < self._parts[entries["namespace"]])
        good &= entries["length"] <= (entries["granules"].astype(np.int64) - 1) * GRANULE
        return self._filter(entries, good)

    def _adopt(self, entries: EntryArray) -> EntryArray:
        """Passes entries whose segment serves their slot size; hands whole segments to the table."""
        if not len(entries):  # none of a batch may be sound
            return entries
        kept: list[EntryArray] = []
        segment = entries["slot"].astype(np.int64) // self._granules
        starts = np.flatnonzero(np.diff(segment, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(entries)], strict=True):
            piece = entries[start:end]
            if self._current and int(self._current[0]["slot"][0]) // self._granules != segment[start]:
                self._flush()
            first = self._current[0] if self._current else piece
            piece = self._filter(piece, piece["granules"] == first["granules"][0])
            self._current.append(piece)
            kept.append(piece)
        return np.concatenate(kept)

    def _flush(self) -> None:
        if not self._current:
            return
        entries, self._current = np.concatenate(self._current), []
        segment = int(entries["slot"][0]) // self._granules
        self.seen.add(segment)
        self._table.adopt(segment, int(entries["granules"][0]), entries["slot"].copy(), entries["generation"].copy())

    def _filter(self, entries: EntryArray, good: npt.NDArray[np.bool_]) -> EntryArray:
        if good.all():
            return entries
        self.dropped.append(entries["slot"][~good].copy())
        return entries[good]


def columns(entries: EntryArray) -> Entries:
    """Index entries as columns; the checksums stay on the disk."""
    column: Callable[[str], npt.NDArray[np.generic]] = lambda name: np.ascontiguousarray(entries[name])  # noqa: E731
    return Entries(
        slots=column("slot").astype(np.uint32),
        generations=column("generation").astype(np.uint32),
        namespaces=column("namespace").astype(np.uint16),
        parts=column("part").astype(np.uint8),
        keys=column("key").astype(np.uint64),
        parents=column("parent").astype(np.uint64),
        blocks=column("block").astype(np.uint32),
        lengths=column("length").astype(np.uint64),
        importance=column("importance").astype(np.uint16),
        stamps=column("stamp").astype(np.uint32),
        chunks=column("chunks").astype(np.uint32),
        checksums=np.empty(0, np.uint64),
    )


def runs(entries: Entries) -> npt.NDArray[np.int64]:
    """Where runs start in a batch: within one, each block's parent is the entry before it. Shape (runs,)."""
    if not len(entries):
        return np.empty(0, np.int64)
    follows = (entries.parents[1:] == entries.keys[:-1]).all(axis=1)
    follows &= entries.blocks[1:] == entries.blocks[:-1] + 1
    follows &= entries.namespaces[1:] == entries.namespaces[:-1]
    follows &= entries.parts[1:] == entries.parts[:-1]
    return np.flatnonzero(np.concatenate([[True], ~follows]))
