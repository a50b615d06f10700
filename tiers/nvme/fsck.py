"""Checks a tier's directory while no node uses it: index, slots and, unless told otherwise, every byte."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvstore.core.errors import ConfigError
from kvstore.tiers.nvme.blockio import CHECKSUM, IO, STALE, TRAILER, bytes_hold, load_trailer
from kvstore.tiers.nvme.directory import NvmeDirectory
from kvstore.tiers.nvme.files import SegmentFiles
from kvstore.tiers.nvme.format import ENTRY, INDEX_DIRECTORY, DirectoryFormat, EntryArray, Trailer, digest
from kvstore.tiers.nvme.format import read_trailer as parse_trailer
from kvstore.tiers.nvme.index import IndexFailed, IndexGone, IndexProcess
from kvstore.tiers.nvme.index_wire import NAMESPACES
from kvstore.tiers.nvme.namespaces import NamespaceTable
from kvstore.tiers.nvme.pool import Bounce, IoPool, Lane
from kvstore.tiers.nvme.recovery import Recovery
from kvstore.tiers.nvme.slots import SlotTable
from kvstore.tiers.nvme.transfer import run_all
from kvstore.tiers.tier import GRANULE

_BATCH = 64  # slots read at a time
ENTRY_DAMAGED, INDEX_DAMAGED = "entry", "index"
Progress = Callable[[int, int], object]  # entries checked, of how many


@dataclass
class FsckReport:
    """What was found. ``bad``: slot and reason (entry: the index entry itself; stale, trailer, checksum, io: what the
    slot holds); ``repaired``: entries removed."""

    directory: str
    node_id: str = ""
    entries: int = 0
    bytes: int = 0
    segments: int = 0
    namespaces: int = 0
    payload: bool = True
    bad: list[tuple[int, str]] = field(default_factory=list)
    repaired: int = 0
    trouble: str = ""  # the index as a whole

    @property
    def clean(self) -> bool:
        """Nothing is wrong, or nothing is any more."""
        return not self.trouble and len(self.bad) == self.repaired

    @property
    def reasons(self) -> dict[str, int]:
        """Bad slots by reason."""
        return dict(Counter(reason for _, reason in self.bad))


def fsck(
    directory: Path, *, repair: bool = False, payload: bool = True, progress: Progress = lambda done, total: None
) -> FsckReport:
    """Checks; with ``repair`` removes the entries of bad slots (and an index that cannot be read: the tier is empty
    then). ``payload`` False: trailers only. Raises ConfigError when there is no tier, or a living node uses it."""
    found = DirectoryFormat.load(directory)
    if found is None:
        raise ConfigError(f"{directory} holds no NVMe tier (it has no format file)")
    place = NvmeDirectory(directory, "", found.segment_bytes)
    report = FsckReport(str(directory), found.node_id, payload=payload)
    try:
        with _index(place) as index:
            _Check(report, index, directory, found.segment_bytes).run(repair, progress)
    except (IndexGone, IndexFailed) as error:
        report.trouble = f"the index cannot be read: {error}"
        if repair:
            shutil.rmtree(directory / INDEX_DIRECTORY)
            report.trouble, report.bad, report.repaired = "", [(0, INDEX_DAMAGED)], 1
    finally:
        place.unlock()
    return report


@contextmanager
def _index(place: NvmeDirectory) -> Iterator[IndexProcess]:
    index = IndexProcess(place.index, place.lock_fd)
    try:
        yield index
    finally:
        index.close()


class _Check:
    def __init__(self, report: FsckReport, index: IndexProcess, directory: Path, segment_bytes: int) -> None:
        self._report, self._index = report, index
        self._files = SegmentFiles(directory, segment_bytes)
        self._namespaces = NamespaceTable()
        self._numbers = self._open_segments()

    def _open_segments(self) -> list[int]:
        """Segment files of the right size; entries in others are bad."""
        size = self._files.segment_bytes
        numbers = [n for n in self._files.existing() if self._files.path(n).stat().st_size == size]
        for number in numbers:
            self._files.open(number, readonly=True)
        return numbers

    def run(self, repair: bool, progress: Progress) -> None:
        report, index = self._report, self._index
        self._namespaces.load(index.metas(NAMESPACES))
        report.segments, report.namespaces = len(self._numbers), len(self._namespaces.all())
        packed = list(index.scan())
        self._structure(packed)
        pool = IoPool(4, _BATCH)
        try:
            for at, batch in _batches(packed):
                self._slots(pool, batch)
                progress(at, report.entries)
        finally:
            pool.close()
            self._files.detach()
        if repair and report.bad:
            slots = np.array([slot for slot, _ in report.bad], ">u4")
            index.commit(b"", slots.tobytes())
            report.repaired = len(report.bad)

    def _structure(self, packed: list[bytes]) -> None:
        """Entries against each other, the segments and the namespaces there are."""
        numbers = self._namespaces.all()
        parts = {number: len(known.cuts) for number in numbers if (known := self._namespaces.get(number))}
        table = SlotTable(max(self._numbers, default=0) + 1, self._files.segment_bytes)
        recovery = Recovery(table, self._files.segment_bytes, self._numbers, parts)
        for batch in recovery.batches(iter(packed)):
            self._report.entries += len(batch)
            self._report.bytes += int(batch.lengths.sum())
        for slots in recovery.dropped:
            self._report.entries += len(slots)
            self._report.bad += [(slot, ENTRY_DAMAGED) for slot in slots.tolist()]
        self._dropped = {slot for slot, _ in self._report.bad}

    def _slots(self, pool: IoPool, entries: EntryArray) -> None:
        """What a batch of slots holds."""
        reasons = [""] * len(entries)

        def job(at: int) -> Callable[[Bounce], None]:
            def look(bounce: Bounce) -> None:
                reasons[at] = self._look(entries[at], bounce)

            return look

        wanted = [at for at in range(len(entries)) if int(entries[at]["slot"]) not in self._dropped]
        run_all(pool, Lane.READ, [job(at) for at in wanted])
        self._report.bad += [(int(entries[at]["slot"]), reasons[at]) for at in wanted if reasons[at]]

    def _look(self, entry: np.void, bounce: Bounce) -> str:
        slot, length, size = int(entry["slot"]), int(entry["length"]), int(entry["granules"]) * GRANULE
        try:
            if not self._report.payload:
                trailer = load_trailer(self._files, bounce, slot, length, int(entry["chunks"]))
                return self._agree(entry, trailer)
            memory = bounce.get(size)
            self._files.read(slot, 0, [memory])
        except OSError:
            return IO
        trailer = parse_trailer(memory[-(-length // GRANULE) * GRANULE :])
        return self._agree(entry, trailer) or ("" if trailer and bytes_hold(memory[:length], trailer) else CHECKSUM)

    def _agree(self, entry: np.void, trailer: Trailer | None) -> str:
        if trailer is None:
            return TRAILER
        known = self._namespaces.get(int(entry["namespace"]))
        said = (trailer.slot, trailer.generation, trailer.key, trailer.part, trailer.length, trailer.root)
        names = ("slot", "generation", "key", "part", "length")
        want = tuple(entry[n].tobytes() if n == "key" else int(entry[n]) for n in names)
        if known is None or said != (*want, known.root):
            return STALE
        return "" if digest(trailer.sums, trailer.generation) == int(entry["digest"]) else STALE


def _batches(packed: list[bytes]) -> Iterator[tuple[int, EntryArray]]:
    done = 0
    for piece in packed:
        entries: EntryArray = np.frombuffer(piece, ENTRY)
        for start in range(0, len(entries), _BATCH):
            batch = entries[start : start + _BATCH]
            done += len(batch)
            yield done, batch
