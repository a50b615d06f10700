"""What is told of blocks: which tiers a block can be read in, and blocks that follow each other as one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.core.keys import KEY_BYTES, KeyArray
from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import READY
from kvstore.tiers.tier import TierKind, U32Array

if TYPE_CHECKING:
    from kvstore.tiers.state import State

TierMasks: TypeAlias = npt.NDArray[np.uint8]  # bit TierKind: can be read there; 0: not here

_DRAM, _NVME = (np.uint8(1 << tier) for tier in (TierKind.DRAM, TierKind.NVME))


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks of one chain can be read here. ``parent``: key of the block before, b"" at block 0.

    ``tiers``: bit TierKind, all parts that a hit needs are in that tier; of a block whose parts lie in several, that of
    the slowest. ``moved``: the blocks were told of before, in other tiers.
    """

    root: bytes
    first_block: int
    parent: bytes
    keys: bytes
    tiers: int
    moved: bool = False

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks, of any chains, that cannot be read here any more."""

    root: bytes
    keys: bytes

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES


@dataclass(frozen=True, slots=True)
class Dropped:
    """No block of a namespace can be read here any more."""

    root: bytes

    def __len__(self) -> int:
        return 1


Event: TypeAlias = "Stored | Removed | Dropped"


@dataclass(frozen=True, slots=True)
class Seen:
    """Blocks as they were when the lock was held, by position. ``parents``: key of the block before."""

    roots: dict[int, bytes]  # by handle
    handles: IntArray  # of their namespaces
    blocks: U32Array
    keys: KeyArray
    parents: KeyArray
    tiers: TierMasks
    moved: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.keys)


def tiers_of(state: State, rows: IntArray) -> TierMasks:
    """Under the lock: where rows can be read, as ``match`` finds it."""
    index, placement = state.index, state.placement
    ready, numbers = index.ready[rows], index.namespace[rows]
    here = index.state[rows] == READY
    masks = np.zeros(len(rows), np.uint8)
    for number in np.flatnonzero(np.bincount(numbers[here])).tolist():
        namespace = state.namespaces.by_id(number)
        if namespace is None or namespace.void:
            continue
        need = np.uint64(namespace.needed)
        found = np.flatnonzero(here & (numbers == number) & (ready & need == need))
        if placement is None:
            masks[found] = _DRAM
            continue
        mine = rows[found]
        in_dram = placement.dram[mine] & need == need
        masks[found] = in_dram * _DRAM + (~in_dram | (placement.on_nvme[mine] & need == need)) * _NVME
    return masks


def see(state: State, rows: IntArray, tiers: TierMasks, moved: npt.NDArray[np.bool_]) -> Seen:
    """Under the lock: what is told of rows, all of them READY."""
    index = state.index
    numbers, handles, roots = index.namespace[rows], np.empty(len(rows), np.int64), {}
    for number in np.flatnonzero(np.bincount(numbers)).tolist():
        found = state.namespaces.by_id(number)
        assert found is not None, "rows keep their namespace's id in use"
        handles[numbers == number] = found.handle
        roots[found.handle] = found.root
    above = index.parent[rows]
    return Seen(roots, handles, index.block[rows], _keys(state, rows), _keys(state, above), tiers, moved)


def joined(pieces: Sequence[Seen]) -> Seen:
    """Several looks as one."""
    columns = (
        np.concatenate([getattr(piece, name) for piece in pieces])
        for name in ("handles", "blocks", "keys", "parents", "tiers", "moved")
    )
    return Seen({handle: root for piece in pieces for handle, root in piece.roots.items()}, *columns)


def _keys(state: State, rows: npt.NDArray[np.integer]) -> KeyArray:
    return np.stack((state.index.key_low[rows], state.index.key_high[rows]), axis=1)


def runs(seen: Seen) -> Iterator[Stored]:
    """The blocks as runs, as few as there can be."""
    if not len(seen):
        return
    head = _heads(seen)
    order = np.lexsort((seen.blocks, head))
    starts = np.flatnonzero(np.diff(head[order], prepend=-1)).tolist()
    raw = seen.keys[order].tobytes()
    first = order[starts]
    for at, start, stop, handle, block, tiers, moved in zip(
        first.tolist(), starts, [*starts[1:], len(order)], seen.handles[first].tolist(), seen.blocks[first].tolist(),
        seen.tiers[first].tolist(), seen.moved[first].tolist(), strict=True,
    ):  # fmt: skip
        parent = seen.parents[at].tobytes() if block else b""
        keys = raw[start * KEY_BYTES : stop * KEY_BYTES]
        yield Stored(seen.roots[handle], block, parent, keys, tiers, moved)


def _heads(seen: Seen) -> IntArray:
    """Position of the first block of the run that each block is in."""
    low, count = seen.keys[:, 0], len(seen)
    order = np.argsort(low)
    above = order[np.minimum(np.searchsorted(low, seen.parents[:, 0], sorter=order), count - 1)]
    fits = (seen.keys[above] == seen.parents).all(axis=1) & (seen.blocks[above] + np.uint32(1) == seen.blocks)
    for column in (seen.handles, seen.tiers, seen.moved):
        fits &= column[above] == column
    follows = np.flatnonzero(fits)
    _, one = np.unique(above[follows], return_index=True)  # of several children one goes on with the run
    head = np.arange(count)
    head[follows[one]] = above[follows[one]]
    while (head[head] != head).any():  # each round looks twice as far up
        head = head[head]
    return head
