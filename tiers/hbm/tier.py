"""The HBM tier: slots in one allocation of a device. What is recorded about them lives in host memory, and neither
survives the process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import ConfigError, InvalidArgument
from kvstore.tiers.columns import column
from kvstore.tiers.hbm.device import Device, Event, Stream
from kvstore.tiers.segments import SegmentSpace, slot_class
from kvstore.tiers.tier import GRANULE, Entries, SlotArray, Slots, Tier, TierKind, TierStat, Transfer, U64Array

_SUMS = GRANULE // 16 // 8  # checksums that a slot class can have for each granule, at most
_Copy = Callable[[Stream, int, memoryview], None]  # stream, byte offset in the allocation, host bytes


class HbmTier(Tier):
    """``capacity`` bytes of a device in segments of ``segment_bytes`` (a power of two). Raises DeviceError when it has
    not that much memory, ConfigError for sizes that do not fit.

    Addresses start behind one segment that does not exist, so that 0 is never a slot. Copies are spread over
    ``streams`` streams; ``read`` and ``write`` return when all of theirs have ended.
    """

    kind: ClassVar[TierKind] = TierKind.HBM
    name: ClassVar[str] = "hbm"
    survives: ClassVar[bool] = False

    def __init__(self, device: Device, capacity: int, segment_bytes: int, streams: int = 2) -> None:
        segments = capacity // max(1, segment_bytes)
        if segment_bytes < GRANULE or segment_bytes & (segment_bytes - 1) or not segments:
            raise ConfigError(
                f"HBM segments of {segment_bytes} bytes do not fit: a power of two of at least {GRANULE}, at most the "
                f"capacity of {capacity} bytes",
                segment_bytes=segment_bytes,
            )
        self._device = device
        self._segment_bytes = segment_bytes
        granules = segment_bytes // GRANULE
        self._space = SegmentSpace(granules, granules, segments, lambda segment, kind: True)
        for segment in reversed(range(segments)):
            self._space.add(segment)
        self._base = segment_bytes
        self._generation: npt.NDArray[np.uint32] = column((segments + 1) * granules, np.uint32)  # by address
        self._sums: npt.NDArray[np.uint64] = column((segments + 1) * granules * _SUMS, np.uint64)
        self._memory = device.allocate(segments * segment_bytes)
        self._streams = [(threading.Lock(), device.stream()) for _ in range(max(1, streams))]
        self._turn = itertools.count()

    @property
    def capacity(self) -> int:
        return self._memory.bytes

    # --- slots ---------------------------------------------------------------------------------------------

    def allocate(self, slot_bytes: int, chunks: int, count: int) -> Slots:
        kind = slot_class(slot_bytes, chunks)
        if kind.granules > self._space.segment_granules:
            raise InvalidArgument(
                f"a part of {slot_bytes} bytes with {chunks} chunks needs a slot of {kind.granules * GRANULE} bytes, "
                f"but a segment has {self._segment_bytes}; raise segment_bytes",
                got=slot_bytes,
            )
        slots = self._space.allocate(kind, count)
        self._generation[slots] += 1
        return Slots(slots, self._generation[slots])

    def free(self, slots: SlotArray) -> None:
        self._space.free(slots)

    # --- what is recorded: in host memory, for as long as the process lives --------------------------------

    def record(self, entries: Entries) -> None:
        starts = np.cumsum(entries.chunks) - entries.chunks
        for slot, start, count in zip(
            entries.slots.tolist(), starts.tolist(), entries.chunks.tolist(), strict=True
        ):  # fmt: skip
            self._sums[slot * _SUMS : slot * _SUMS + count] = entries.checksums[start : start + count]

    def forget(self, slots: SlotArray) -> None:
        """Nothing to do: no restart finds anything here."""

    def recover(self) -> Iterator[Entries]:
        """Nothing: the memory of a device goes with the process."""
        return iter(())

    def checksums(self, slots: SlotArray, chunks: range) -> U64Array:
        at = slots.astype(np.int64) * _SUMS + chunks.start
        return np.asarray(self._sums[at[:, None] + np.arange(len(chunks))])

    # --- bytes ---------------------------------------------------------------------------------------------

    def write(self, transfers: Sequence[Transfer]) -> None:
        _wait(self.start_write(transfers))

    def read(self, transfers: Sequence[Transfer]) -> None:
        _wait(self.start_read(transfers))

    def start_write(self, transfers: Sequence[Transfer]) -> list[Event]:
        """Queues copies into slots. The buffers must stay as they are until all events were waited for."""
        return self._start(transfers, lambda stream, at, host: stream.copy_in(self._memory, at, host))

    def start_read(self, transfers: Sequence[Transfer]) -> list[Event]:
        """Queues copies out of slots. The buffers are filled when all events were waited for."""
        return self._start(transfers, lambda stream, at, host: stream.copy_out(self._memory, at, host))

    def _start(self, transfers: Sequence[Transfer], copy: _Copy) -> list[Event]:
        places = [
            (self._place(one), one.buffer.cast("B")) for one in transfers
        ]  # all of them are sound, or none starts
        width = max(1, min(len(self._streams), len(places)))
        turn = next(self._turn)
        events = []
        for nth in range(width):
            lock, stream = self._streams[(turn + nth) % len(self._streams)]
            with lock:
                for at, host in places[nth::width]:
                    copy(stream, at, host)
                events.append(stream.record())
        return events

    def _place(self, transfer: Transfer) -> int:
        """Byte offset in the allocation. Raises InvalidArgument unless it lies within one slot."""
        segments, _ = self._space.locate(np.array([transfer.slot], np.uint32))
        known = 0 <= segments[0] < self._space.segments
        size = int(self._space.granules_of[segments[0]]) * GRANULE if known else 0
        if not 0 <= transfer.offset <= transfer.offset + transfer.buffer.nbytes <= size:
            raise InvalidArgument(
                f"{transfer.buffer.nbytes} bytes at {transfer.offset} do not lie in slot {transfer.slot} of {size}"
            )
        return transfer.slot * GRANULE - self._base + transfer.offset

    # --- the rest ------------------------------------------------------------------------------------------

    def stat(self) -> TierStat:
        usage = self._space.usage()
        return TierStat(
            name=self.name, capacity_bytes=self.capacity, used_bytes=self._space.used_granules * GRANULE,
            backed_bytes=self.capacity, segments=self._space.segments, segments_ready=self._space.segments,
            slots=usage.slots, slots_used=usage.used,
        )  # fmt: skip

    def close(self) -> None:
        for lock, stream in self._streams:
            with lock:
                stream.close()
        self._device.free(self._memory)


def _wait(events: Sequence[Event]) -> None:
    """Waits for all, also when one failed: the buffers are the caller's again."""
    failed: list[OSError] = []
    for event in events:
        try:
            event.wait()
        except OSError as error:
            failed.append(error)
    if failed:
        raise failed[0]
