"""What the movers of a two-tier store share: a block on its way, and its entry in a tier's record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvstore.core.checksum import chunk_sums, part_seed
from kvstore.tiers.index import BlockIndex
from kvstore.tiers.mover import Move, Priority
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.tier import Entries, TierKind, U64Array

GONE = "gone"  # outcome: the block was dropped meanwhile, or is somewhere else already
NO_ROOM = "no_room"


@dataclass(frozen=True, slots=True)
class Trip:
    """Context of a move. ``held``: since it was queued. ``keep``: the copy in DRAM stays."""

    namespace: int
    key: bytes
    held: bool = False
    keep: bool = False


@dataclass(slots=True)
class Load:
    """One block being moved: its parts by number with slot and generation where they go, and their checksums."""

    move: Move
    row: int
    key: bytes
    namespace: Namespace
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    sums: dict[int, U64Array] = field(default_factory=dict)
    sources: dict[int, tuple[int, int]] = field(default_factory=dict)  # where the parts come from
    closed: bool = False  # its hold has ended

    @property
    def trip(self) -> Trip:
        assert isinstance(self.move.context, Trip)
        return self.move.context


def block_move(
    row: int, namespace: Namespace, key: bytes, source: TierKind, target: TierKind, priority: Priority, *,
    held: bool = False, keep: bool = False,
) -> Move:  # fmt: skip
    """The move of a whole block; its size is that of all its parts."""
    size = sum(cut.length for cut in namespace.cuts)
    return Move(row, source, target, size, priority, Trip(namespace.id, key, held, keep))


def entries_of(index: BlockIndex, parts: Sequence[tuple[Load, int]], numbers: dict[int, int]) -> Entries:
    """Record of some parts of blocks, in order. ``numbers``: the tier's number of each namespace id. The loads' rows
    are held; called under the lock."""
    flat = [(load, part, load.places[part]) for load, part in parts]
    cuts = [load.namespace.cuts[part] for load, part, _ in flat]
    parents = [index.parent_at[load.row] for load, _, _ in flat]
    keys = b"".join(load.key for load, _, _ in flat)
    above = b"".join(index.key(parent) if parent >= 0 else bytes(16) for parent in parents)
    stamp = int(time.time())
    return Entries(
        slots=np.array([place[0] for _, _, place in flat], np.uint32),
        generations=np.array([place[1] for _, _, place in flat], np.uint32),
        namespaces=np.array([numbers[load.namespace.id] for load, _, _ in flat], np.uint16),
        parts=np.array([part for _, part, _ in flat], np.uint8),
        keys=np.frombuffer(keys, "<u8").reshape(-1, 2), parents=np.frombuffer(above, "<u8").reshape(-1, 2),
        blocks=np.array([index.block_at[load.row] for load, _, _ in flat], np.uint32),
        lengths=np.array([cut.length for cut in cuts], np.uint64),
        importance=np.array([index.importance_at[load.row] for load, _, _ in flat], np.uint16),
        stamps=np.full(len(flat), stamp, np.uint32), chunks=np.array([cut.count for cut in cuts], np.uint32),
        checksums=np.concatenate([load.sums[part] for load, part, _ in flat]) if flat else np.empty(0, np.uint64),
    )  # fmt: skip


def sound(load: Load, part: int, view: memoryview) -> bool:
    """Bytes of a part pass the checksums that the load carries."""
    cut = load.namespace.cuts[part]
    return bool((chunk_sums(view, part_seed(load.key, part), cut) == load.sums[part]).all())
