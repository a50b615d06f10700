"""The one interface behind which every tier (DRAM, NVMe, HBM) keeps slots.

A tier hands out slots, moves bytes in and out of them, and remembers across a restart what lies in the
committed ones. It knows nothing of chains, leases or eviction: that is the store's business.

Threads: ``allocate``, ``free``, ``record`` and ``forget`` are quick, called under the store's lock and must
not wait for a device. ``read``, ``write``, ``sync`` and ``recover`` may take long and are called without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

GRANULE = 4096  # bytes: the unit of slot addresses and of slot sizes
NO_SLOT = 0xFFFFFFFF  # in the index: this part has no slot in that tier

SlotArray: TypeAlias = npt.NDArray[np.uint32]  # granules from the start of the tier's space
U16Array: TypeAlias = npt.NDArray[np.uint16]
U32Array: TypeAlias = npt.NDArray[np.uint32]
U64Array: TypeAlias = npt.NDArray[np.uint64]


class TierKind(IntEnum):
    """Position of a tier's columns in the index; smaller is not faster."""

    DRAM = 0
    NVME = 1
    HBM = 2


class Slots(NamedTuple):
    """Slots just given out: address (granules) and generation of each, shape (n,)."""

    slots: SlotArray
    generations: U32Array


class Transfer(NamedTuple):
    """One piece of I/O: ``buffer`` (host memory) to or from ``offset`` bytes after the start of ``slot``."""

    slot: int
    offset: int
    buffer: memoryview


@dataclass(frozen=True, slots=True)
class Entries:
    """What lies in n committed slots, as columns of shape (n,); keys and parents (n, 2).

    ``checksums`` holds the chunks of all slots one after the other, ``chunks`` says how many each slot has.
    ``parents`` is the key of the block before (zero at block 0). ``stamps`` orders slots by last use: seconds
    since the epoch, all slots of one commit alike.
    """

    slots: SlotArray
    generations: U32Array
    namespaces: U16Array
    parts: npt.NDArray[np.uint8]
    keys: U64Array
    parents: U64Array
    blocks: U32Array
    lengths: U64Array
    importance: U16Array
    stamps: U32Array
    chunks: U32Array
    checksums: U64Array

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class TierStat:
    """Occupancy of a tier. ``segments_ready`` of ``segments`` can be handed out; ``trouble``: "" or why not more."""

    name: str
    capacity_bytes: int
    used_bytes: int  # slots given out
    backed_bytes: int  # memory or disk really taken, tables included
    segments: int
    segments_ready: int
    slots: int  # that exist in segments serving a slot size
    slots_used: int
    trouble: str = ""


class Tier(ABC):
    """Slots of one kind of memory. ``alignment``: buffers aligned so (address and length) move without a bounce.
    ``survives``: what is recorded is found after a restart of the process."""

    kind: ClassVar[TierKind]
    name: ClassVar[str]
    alignment: ClassVar[int] = 1
    survives: ClassVar[bool] = True

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Bytes that slots can take at most."""

    @abstractmethod
    def allocate(self, slot_bytes: int, chunks: int, count: int) -> Slots:
        """Up to ``count`` slots of at least ``slot_bytes`` bytes, each with room for ``chunks`` recorded
        checksums; fewer when there is no room. Raises InvalidArgument when such a slot can never exist here.
        A slot's generation is higher than at each time it was given out before, and whatever was recorded
        about it is forgotten."""

    @abstractmethod
    def free(self, slots: SlotArray) -> None:
        """Takes slots back. What was recorded about them is forgotten."""

    @abstractmethod
    def record(self, entries: Entries) -> None:
        """The slots' bytes are complete: a restart will find them (a durable tier: after the next ``sync``)."""

    @abstractmethod
    def forget(self, slots: SlotArray) -> None:
        """A restart will not find these slots; they stay given out."""

    @abstractmethod
    def recover(self) -> Iterator[Entries]:
        """Once, after opening: all recorded slots, in batches, already marked as given out. ``checksums`` of the
        batches may be left empty where the method of that name reads them when they are wanted."""

    @abstractmethod
    def checksums(self, slots: SlotArray, chunks: range) -> U64Array:
        """Recorded chunk checksums, shape (len(slots), len(chunks)); every slot has at least that many chunks."""

    @abstractmethod
    def write(self, transfers: Sequence[Transfer]) -> None:
        """Copies host buffers into slots; returns when all are there. Raises OSError of the device."""

    @abstractmethod
    def read(self, transfers: Sequence[Transfer]) -> None:
        """Copies bytes of slots into host buffers; returns when all are there. Raises OSError of the device."""

    def view(self, slot: int, length: int) -> memoryview | None:
        """The slot's bytes in place, where the tier is mapped host memory; else None: use ``read``."""
        return None

    def sync(self) -> None:  # noqa: B027
        """Returns when everything recorded so far survives what this tier survives (NVMe: power loss)."""

    @abstractmethod
    def stat(self) -> TierStat: ...

    @abstractmethod
    def close(self) -> None:
        """Stops threads and lets go of the memory; what is recorded stays for the next start."""
