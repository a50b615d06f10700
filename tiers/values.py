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
    NOT_DURABLE = 8
    NOT_REPLICATED = 9


class MissReason(IntEnum):
    """Why a prefix ends; numbers of ``kvstore.v1.MissReason``. NONE: it does not end early."""

    NONE = 0
    ABSENT = 1
    PENDING = 2
    PART = 3
    CHECKSUM = 4
    BUSY = 5
    EVICTING = 6
    LOADING = 7


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How a store is set up. 0: chosen from the capacity.

    ``capacity_bytes`` bounds the memory file, tables included. ``node_id`` (16 bytes) stays with the file.
    ``max_leased_slots`` and ``max_leased_bytes`` bound what one session holds in leases and reservations.
    Eviction starts when ``high_watermark`` of the slots of a size are used and stops at ``low_watermark``.

    With ``nvme_dir`` there is an NVMe tier of ``nvme_capacity_bytes`` (segments of ``nvme_segment_bytes``). Write rule:
    "clean" writes blocks when they leave DRAM, "through" when they are committed, "off" never. Of the former only those
    of a score of ``nvme_admission`` or more are written; the threshold rises while more than ``nvme_write_bytes`` a
    second, or ``nvme_drive_writes`` times the capacity a day, would be written (0: no bound). ``room_wait``: seconds
    that a put waits for blocks on their way out of DRAM; ``durable_wait``: seconds that a commit waits to be durable;
    ``flush_seconds``: how long ``close`` may write what is in DRAM only.

    Hard pins may take ``max_pinned_bytes`` (0: a quarter of the capacity), those of one tenant
    ``max_pinned_bytes_tenant`` (0: as many). Blocks of a namespace that nobody used for ``namespace_idle`` seconds go
    before all others (0: they do not), and wholly after ``namespace_ttl`` (0: never). ``scrub_bytes`` a second of DRAM
    are checked at rest (0: none), a pass begins every ``scrub_interval`` seconds.
    """

    memory_file: Path
    capacity_bytes: int
    node_id: bytes = bytes(16)
    policy: str = "turnscore"
    segment_bytes: int = 0
    max_sessions: int = 256
    max_leased_slots: int = 0
    max_leased_bytes: int = 0
    max_blocks: int = 0
    max_parts: int = 0
    high_watermark: float = 0.95
    low_watermark: float = 0.90
    prefault: bool = True
    nvme_dir: Path | None = None
    nvme_capacity_bytes: int = 0
    nvme_segment_bytes: int = 0
    nvme_write_rule: str = "clean"
    nvme_admission: float = 0.0
    nvme_write_bytes: int = 0
    nvme_drive_writes: float = 0.0
    nvme_io_threads: int = 8
    nvme_movers: int = 4
    nvme_scrub_bytes: int = 32 << 20
    room_wait: float = 5.0
    durable_wait: float = 10.0
    flush_seconds: float = 0.0
    max_pinned_bytes: int = 0
    max_pinned_bytes_tenant: int = 0
    namespace_idle: float = 3600.0
    namespace_ttl: float = 0.0
    scrub_bytes: int = 32 << 20
    scrub_interval: float = 600.0
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
    ``generation``: how often it was rotated, ``rotation``: by which of the rotations that led there (``namespace_at``
    only).
    """

    handle: int
    root: bytes
    spec: NamespaceSpec
    created: bool = False
    differs: tuple[str, ...] = ()
    nearest_root: bytes = b""
    generation: int = 0
    rotation: int = 0


@dataclass(frozen=True, slots=True)
class PinStat:
    """Pinned blocks, bytes of the hard-pinned ones, and how many there may be on this node and for one tenant."""

    soft_blocks: int = 0
    hard_blocks: int = 0
    hard_bytes: int = 0
    max_bytes: int = 0
    max_tenant_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NamespaceStat:
    """One namespace: blocks that can be found, bytes of their READY parts, seconds since it was last used.

    ``tier_bytes``: by tier, a part that is in two of them counts in both. ``pinned_bytes``: of hard-pinned blocks.
    ``generation``: how often it was rotated.
    """

    handle: int
    root: bytes
    spec: NamespaceSpec
    canonical: bytes
    blocks: int
    bytes: int
    idle_seconds: float
    tier_bytes: tuple[tuple[TierKind, int], ...] = ()
    pinned_bytes: int = 0
    generation: int = 0


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
    ``prefix_blocks``: the prefix found, also where a bound cut ``blocks`` short. ``loaded``: it waited for NVMe;
    ``remote``: for other nodes.
    """

    lease: int
    blocks: int
    prefix_blocks: int
    offsets: U64Array
    generations: U32Array
    checksums: U64Array
    miss: MissReason
    loaded: bool = False
    remote: bool = False


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
class Prefetched:
    """Blocks of a prefetch: on their way now, in that tier already, not here (or refused: too many wait)."""

    started: int
    present: int
    absent: int


@dataclass(frozen=True, slots=True)
class NvmeReport:
    """The NVMe tier: state ok, degraded, read_only or failed, why, since when (seconds since the epoch), what to do.

    ``counters`` only grow; ``threshold``: score that is written now; ``waiting``: moves queued by priority, how many
    may be, and how long the next one of each waits. ``backlog``: changes of the index that are not durable yet.
    """

    state: str
    reason: str
    since: float
    advice: str
    blocks: int
    threshold: float
    counters: dict[str, int]
    waiting: dict[str, int]
    waiting_seconds: dict[str, float] = field(default_factory=dict)
    waiting_max: dict[str, int] = field(default_factory=dict)
    backlog: int = 0
    bad_slots: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """What sessions hold: to read, to write. ``oldest_lease``: age in seconds, 0 without one."""

    leases: int = 0
    leased_bytes: int = 0
    oldest_lease: float = 0.0
    reservations: int = 0
    reserved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoreStat:
    """Everything a status page shows. ``counters`` only grow; their names are those of the metrics."""

    boot_id: bytes
    tiers: tuple[TierStat, ...]
    blocks: int
    writing: int
    leased_blocks: int
    held: Held
    sessions: int
    orphan_sessions: int
    unverified: int
    index_bytes: int
    ready_bytes: int
    counters: dict[str, int] = field(default_factory=dict)
    namespaces: tuple[NamespaceStat, ...] = ()
    pins: PinStat = PinStat()
    nvme: NvmeReport | None = None

    @property
    def leases(self) -> int:
        return self.held.leases

    @property
    def reservations(self) -> int:
        return self.held.reservations


NO_OFFSETS: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
NO_GENERATIONS: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
Importance = U16Array
