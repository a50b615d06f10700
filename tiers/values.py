"""Values that the store takes and gives. Arrays are numpy, little-endian, and the receiver's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvstore.core.keys import KeyArray
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.tier import TierKind, TierStat, U16Array, U32Array, U64Array


class AckLevel(IntEnum):
    """When a put counts as done; numbers of ``kvstore.v1.AckLevel``."""

    VISIBLE = 0
    REPLICATED = 1
    DURABLE = 2


class PutOutcome(IntEnum):
    """What became of one key of a put; numbers of ``kvstore.v1.PutOutcome``."""

    STORED = 1
    PRESENT = 2
    PENDING = 3
    NO_SPACE = 4
    PARENT_MISSING = 5
    BUSY = 6
    CHECKSUM = 7


class MissReason(IntEnum):
    """Why a prefix ends; numbers of ``kvstore.v1.MissReason``. NONE: it does not end early."""

    NONE = 0
    ABSENT = 1
    PENDING = 2
    PART = 3
    CHECKSUM = 4
    BUSY = 5
    EVICTING = 6


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How a store is set up. 0: chosen from the capacity.

    ``capacity_bytes`` bounds the memory file, tables included. ``node_id`` (16 bytes) stays with the file.
    ``max_leased_slots`` and ``max_leased_bytes`` bound what one session holds in leases and reservations.
    Eviction starts when ``high_watermark`` of the slots of a size are used and stops at ``low_watermark``.
    """

    memory_file: Path
    capacity_bytes: int
    node_id: bytes = bytes(16)
    policy: str = "lru"
    segment_bytes: int = 0
    max_sessions: int = 256
    max_leased_slots: int = 0
    max_leased_bytes: int = 0
    max_blocks: int = 0
    max_parts: int = 0
    high_watermark: float = 0.95
    low_watermark: float = 0.90
    prefault: bool = True
    product: str = "kvstore"


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The memory file and the lock file, for clients on this host. Segments begin at ``data_offset``.

    ``lock_descriptor`` stays the store's: duplicate it to pass it on, and close no duplicate in a process that holds
    locks of its own on the file.
    """

    bytes: int
    segment_bytes: int
    data_offset: int
    lock_descriptor: int
    lock_device: int
    lock_inode: int


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """A namespace as it was opened. ``handle`` names it until the node's next boot.

    ``differs``: fields in which the nearest stored namespace (``nearest_root``) of the same tenant and model differs.
    """

    handle: int
    root: bytes
    spec: NamespaceSpec
    created: bool = False
    differs: tuple[str, ...] = ()
    nearest_root: bytes = b""


@dataclass(frozen=True, slots=True)
class NamespaceStat:
    """One namespace: blocks that can be found, bytes of their READY parts, seconds since it was last used."""

    handle: int
    root: bytes
    spec: NamespaceSpec
    canonical: bytes
    blocks: int
    bytes: int
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class ChainSlice:
    """Consecutive blocks of one chain. ``parent``: key of the block before, empty at block 0."""

    keys: KeyArray
    parent: bytes = b""
    first_block: int = 0


@dataclass(frozen=True, slots=True)
class PartMatch:
    """Contiguous blocks that have this part; for window and state parts also bit i (LSB first): block i has it."""

    part: int
    blocks: int
    present: bytes = b""


@dataclass(frozen=True, slots=True)
class MatchResult:
    """``blocks``: longest prefix with every prefix part asked for. ``tiers``: prefix by tier, or faster ones."""

    blocks: int
    tiers: tuple[tuple[TierKind, int], ...]
    parts: tuple[PartMatch, ...]
    miss: MissReason


@dataclass(frozen=True, slots=True)
class Acquired:
    """Leased blocks ``first_block`` to ``blocks`` - 1 of a chain. ``lease`` 0: nothing was leased.

    ``offsets`` (bytes in the memory file) and ``generations``, shape (blocks - first_block) x parts, block-major;
    offset 0: this window or state part is not here. ``checksums``: of the chunks asked for, in the same order.
    ``prefix_blocks``: the prefix found, also where a bound cut ``blocks`` short.
    """

    lease: int
    blocks: int
    prefix_blocks: int
    offsets: U64Array
    generations: U32Array
    checksums: U64Array
    miss: MissReason


@dataclass(frozen=True, slots=True)
class Reserved:
    """``outcomes``: one PutOutcome byte a key. ``offsets``, ``generations``: of the STORED ones, block-major by part.

    ``id`` 0: nothing was reserved. ``slots``: how many slots are held.
    """

    id: int
    outcomes: bytes
    offsets: U64Array
    generations: U32Array

    @property
    def slots(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class StoreStat:
    """Everything a status page shows. ``counters`` only grow; their names are those of the metrics."""

    boot_id: bytes
    tiers: tuple[TierStat, ...]
    blocks: int
    writing: int
    leased_blocks: int
    leases: int
    reservations: int
    sessions: int
    orphan_sessions: int
    unverified: int
    index_bytes: int
    ready_bytes: int
    counters: dict[str, int] = field(default_factory=dict)
    namespaces: tuple[NamespaceStat, ...] = ()


NO_OFFSETS: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
NO_GENERATIONS: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
Importance = U16Array
