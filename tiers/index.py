"""The block index: (namespace, key) → row, and one typed column per fact about a block. No object per block."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import NoSpace
from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import FEW, IntArray, RowPool, column, power_of_two
from kvstore.tiers.parts import PartTable

NONE = -1
FREE, WRITING, READY, EVICTING = range(4)  # the ``state`` column; what EVICTING means is the store's business
NO_PIN, SOFT_PIN, HARD_PIN = range(3)  # the ``pins`` column
MAX_BLOCKS = 2**31 - 2
MAX_NAMESPACES = 65536

Key: TypeAlias = "bytes | tuple[int, int]"  # 16 bytes, or their low and high half as little-endian u64

_MASK = 2**64 - 1
_SPREAD = 0x9E3779B97F4A7C15
_DETACHED = -2  # in ``_next``: the row is not in the table any more
_RUN = 8  # up to this many new rows are written one by one
_SCAN = 65536  # rows looked at in one step of rows_of_namespace

# columns of a block row: name, type. All are public but for the three sibling links.
_COLUMNS = (
    ("key_low", "u8"), ("key_high", "u8"), ("ready", "u8"), ("parent", "i4"), ("children", "i4"), ("leases", "i4"),
    ("first_part", "i4"), ("first_child", "i4"), ("newer", "i4"), ("older", "i4"), ("block", "u4"),
    ("namespace", "u2"), ("importance", "u2"), ("state", "u1"), ("pins", "u1"),
)  # fmt: skip


class IndexFull(NoSpace):
    """Every row of the index is in use; evict first, or raise ``max_blocks``."""


class BlockIndex:
    """Index of up to ``max_blocks`` blocks with up to ``max_parts`` parts (default: one a block). Nothing ever grows.

    Not locked: the caller holds its own lock, and cuts long work into pieces of 256 keys.

    Each fact is a numpy column by row, for vectorised work, and ``<name>_at``, a memoryview of the same memory, for
    single values (numpy scalars are three times slower):

    =============  ====  ==================================================================================
    key_low, high  u64   halves of the key, little-endian
    namespace      u16   handle
    parent         i32   row of the parent block, -1: none (block 0, or detached)
    block          u32   place in the chain; depth in tokens = (block + 1) * block_tokens
    state          u8    FREE, WRITING, READY, EVICTING (the store's; insert sets WRITING)
    ready          u64   bit p: part p is READY
    children       i32   resident children; 0: a leaf
    leases         i32   leases that hold the block
    importance     u16   attention hint, 0: none
    pins           u8    NO_PIN, SOFT_PIN, HARD_PIN
    first_part     i32   first row in the part table, -1: none
    first_child    i32   newest child, -1: none
    older, newer   i32   siblings (children of one parent, or block 0s of one namespace), -1: none
    =============  ====  ==================================================================================

    A row number stays valid until ``remove``; after it the number is used again. ``parts`` is the part table.
    """

    key_low: npt.NDArray[np.uint64]
    key_high: npt.NDArray[np.uint64]
    ready: npt.NDArray[np.uint64]
    parent: npt.NDArray[np.int32]
    children: npt.NDArray[np.int32]
    leases: npt.NDArray[np.int32]
    first_part: npt.NDArray[np.int32]
    first_child: npt.NDArray[np.int32]
    newer: npt.NDArray[np.int32]
    older: npt.NDArray[np.int32]
    block: npt.NDArray[np.uint32]
    namespace: npt.NDArray[np.uint16]
    importance: npt.NDArray[np.uint16]
    state: npt.NDArray[np.uint8]
    pins: npt.NDArray[np.uint8]
    key_low_at: memoryview[int]
    key_high_at: memoryview[int]
    ready_at: memoryview[int]
    parent_at: memoryview[int]
    children_at: memoryview[int]
    leases_at: memoryview[int]
    first_part_at: memoryview[int]
    first_child_at: memoryview[int]
    newer_at: memoryview[int]
    older_at: memoryview[int]
    block_at: memoryview[int]
    namespace_at: memoryview[int]
    importance_at: memoryview[int]
    state_at: memoryview[int]
    pins_at: memoryview[int]

    def __init__(self, max_blocks: int, max_parts: int | None = None) -> None:
        if not 1 <= max_blocks <= MAX_BLOCKS:
            raise ValueError(f"max_blocks is {max_blocks}, not 1 to {MAX_BLOCKS}")
        self.max_blocks = max_blocks
        for name, kind in _COLUMNS:
            values = column(max_blocks, kind)
            setattr(self, name, values)
            setattr(self, name + "_at", memoryview(values))
        buckets = power_of_two(max_blocks)
        self._heads: npt.NDArray[np.int32] = column(buckets, np.int32)  # row + 1 of the newest in the bucket, 0: empty
        self._next: npt.NDArray[np.int32] = column(max_blocks, np.int32)  # row + 1 of the next in the bucket
        self._heads_at, self._next_at = memoryview(self._heads), memoryview(self._next)
        self._roots = memoryview(np.full(MAX_NAMESPACES, NONE, np.int32))  # newest block 0 of each namespace
        self._counts = memoryview(np.zeros(MAX_NAMESPACES, np.int64))
        self._shift = 64 - (buckets.bit_length() - 1)
        self._factor = secrets.randbits(63) * 2 + 1  # secret: nobody can choose keys that share a bucket
        self._pool = RowPool(max_blocks)
        self.parts = PartTable(max_parts or max_blocks, self.first_part)

    def __len__(self) -> int:
        """Rows in use, detached ones included."""
        return self._pool.used

    @property
    def rows_used(self) -> int:
        """One past the highest row ever used: scans of a column need to look no further."""
        return self._pool.fresh

    @property
    def nbytes(self) -> int:
        """Bytes of memory behind the index, from the rows ever used (untouched memory is not backed)."""
        row_bytes = sum(np.dtype(kind).itemsize for _, kind in _COLUMNS) + 8
        return self._pool.fresh * row_bytes + min(self._heads.nbytes, self._pool.fresh * 4096) + self.parts.nbytes

    def blocks_of(self, namespace: int) -> int:
        """Blocks of one namespace that can be found."""
        return self._counts[namespace]

    # --- finding ------------------------------------------------------------------------------------------

    def find(self, namespace: int, keys: KeyArray) -> IntArray:
        """Row of each key, -1 where absent. keys: shape (n, 2). Any state is found, a detached row is not."""
        if len(keys) < FEW:
            return np.fromiter(self.find_each(namespace, keys), np.int64, len(keys))
        low, high = np.ascontiguousarray(keys[:, 0]), np.ascontiguousarray(keys[:, 1])
        rows = self._heads[self._buckets(namespace, low)].astype(np.int64) - 1
        found = np.full(len(rows), NONE, np.int64)
        pending = np.flatnonzero(rows >= 0)
        rows = rows[pending]
        while pending.size:
            hit = (self.key_low[rows] == low[pending]) & (self.key_high[rows] == high[pending])
            hit &= self.namespace[rows] == namespace
            found[pending[hit]] = rows[hit]
            pending = pending[~hit]
            rows = self._next[rows[~hit]].astype(np.int64) - 1
            pending, rows = pending[rows >= 0], rows[rows >= 0]
        return found

    def find_each(self, namespace: int, keys: KeyArray) -> Iterator[int]:
        """Like ``find``, one after the other: for a few keys."""
        heads, next_at, mixed = self._heads_at, self._next_at, namespace * _SPREAD & _MASK
        low_at, high_at, namespace_at, factor, shift = (
            self.key_low_at, self.key_high_at, self.namespace_at, self._factor, self._shift
        )  # fmt: skip
        for low, high in keys.tolist():
            at = heads[((low ^ mixed) * factor & _MASK) >> shift]
            while at:
                row = at - 1
                if low_at[row] == low and high_at[row] == high and namespace_at[row] == namespace:
                    break
                at = next_at[row]
            yield at - 1

    def find_one(self, namespace: int, key: Key) -> int:
        """Row of one key, -1 if absent."""
        low, high = _halves(key)
        low_at, next_at = self.key_low_at, self._next_at
        at = self._heads_at[self._bucket(namespace, low)]
        while at:
            row = at - 1
            if low_at[row] == low and self.key_high_at[row] == high and self.namespace_at[row] == namespace:
                return row
            at = next_at[row]
        return NONE

    def key(self, row: int) -> bytes:
        """The 16 bytes of a row's key."""
        return (self.key_low_at[row] | self.key_high_at[row] << 64).to_bytes(16, "little")

    def _bucket(self, namespace: int, low: int) -> int:
        return ((low ^ (namespace * _SPREAD & _MASK)) * self._factor & _MASK) >> self._shift

    def _buckets(self, namespace: int, low: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        if self._shift == 64:  # one bucket: numpy would leave a shift by 64 undefined
            return np.zeros(len(low), np.uint64)
        mixed = (low ^ np.uint64(namespace * _SPREAD & _MASK)) * np.uint64(self._factor)
        return np.asarray(mixed >> np.uint64(self._shift))

    # --- inserting and removing ---------------------------------------------------------------------------

    def insert(self, namespace: int, key: Key, parent_row: int, block: int) -> int:
        """A new row, state WRITING, without parts. The key must be absent, the parent resident (-1: block 0).

        Raises IndexFull.
        """
        self._check_room(1)
        row = self._pool.take()
        self.key_low_at[row], self.key_high_at[row] = _halves(key)
        self.namespace_at[row] = namespace
        self.block_at[row] = block
        self.parent_at[row] = parent_row
        self.state_at[row] = WRITING
        self.children_at[row] = self.leases_at[row] = self.ready_at[row] = 0
        self.importance_at[row] = self.pins_at[row] = 0
        self.first_part_at[row] = self.first_child_at[row] = NONE
        self._link(row, self._bucket(namespace, self.key_low_at[row]))
        self._adopt(row, parent_row, namespace)
        self._counts[namespace] += 1
        return row

    def insert_run(self, namespace: int, keys: KeyArray, parent_row: int, first_block: int) -> IntArray:
        """New rows for consecutive blocks of one chain, like ``insert`` one by one. Raises IndexFull, all or none."""
        count = len(keys)
        self._check_room(count)
        if count <= _RUN:
            return np.array(self._insert_each(namespace, keys, parent_row, first_block), np.int64)
        rows = self._pool.take_many(count)
        if not count:
            return rows
        self.key_low[rows], self.key_high[rows] = keys[:, 0], keys[:, 1]
        self.namespace[rows], self.state[rows] = namespace, WRITING
        self.block[rows] = np.arange(first_block, first_block + count)
        for name in ("leases", "ready", "importance", "pins", "children"):
            getattr(self, name)[rows] = 0
        self.first_part[rows] = self.newer[rows] = self.older[rows] = NONE
        self.parent[rows[1:]], self.first_child[rows[:-1]], self.first_child[rows[-1]] = rows[:-1], rows[1:], NONE
        self.children[rows[:-1]] = 1
        for row, bucket in zip(rows.tolist(), self._buckets(namespace, keys[:, 0]).tolist(), strict=True):
            self._link(row, bucket)
        self.parent[rows[0]] = parent_row
        self._adopt(int(rows[0]), parent_row, namespace)
        self._counts[namespace] += count
        return rows

    def _insert_each(self, namespace: int, keys: KeyArray, row: int, block: int) -> list[int]:
        rows = []
        for at, (low, high) in enumerate(keys.tolist(), block):
            row = self.insert(namespace, (low, high), row, at)
            rows.append(row)
        return rows

    def detach(self, row: int) -> None:
        """Takes a row without children out of the table and the tree: its key is absent, its row and parts stay.

        For a block that must not be found again but whose slots are still held. ``remove`` frees the row later.
        """
        if self._next_at[row] == _DETACHED:
            return
        if self.children_at[row]:
            raise ValueError(f"row {row} has {self.children_at[row]} children; take them out first")
        self._unlink(row)
        self._orphan(row)
        self._counts[self.namespace_at[row]] -= 1

    def remove(self, row: int) -> None:
        """Frees a row without children and its part rows; the slots of those must have been freed."""
        if self.state_at[row] == FREE:
            raise ValueError(f"row {row} is not in use")
        self.detach(row)
        self.parts.drop_all(row)
        self.state_at[row] = FREE
        self._pool.give(row)

    def _check_room(self, count: int) -> None:
        if self._pool.used + count > self.max_blocks:
            raise IndexFull(f"the index is full: {self.max_blocks} blocks. Raise max_blocks", limit=self.max_blocks)

    def _link(self, row: int, bucket: int) -> None:
        self._next_at[row] = self._heads_at[bucket]
        self._heads_at[bucket] = row + 1

    def _unlink(self, row: int) -> None:
        bucket = self._bucket(self.namespace_at[row], self.key_low_at[row])
        at, before = self._heads_at[bucket] - 1, NONE
        while at != row:
            at, before = self._next_at[at] - 1, at
        if before < 0:
            self._heads_at[bucket] = self._next_at[row]
        else:
            self._next_at[before] = self._next_at[row]
        self._next_at[row] = _DETACHED

    def _adopt(self, row: int, parent_row: int, namespace: int) -> None:
        """Puts a row in front of its siblings and counts it."""
        newest, at = (self._roots, namespace) if parent_row < 0 else (self.first_child_at, parent_row)
        sibling = newest[at]
        newest[at] = row
        self.older_at[row], self.newer_at[row] = sibling, NONE
        if sibling >= 0:
            self.newer_at[sibling] = row
        if parent_row >= 0:
            self.children_at[parent_row] += 1

    def _orphan(self, row: int) -> None:
        older, newer, parent = self.older_at[row], self.newer_at[row], self.parent_at[row]
        if older >= 0:
            self.newer_at[older] = newer
        if newer >= 0:
            self.older_at[newer] = older
        elif parent >= 0:
            self.first_child_at[parent] = older
        else:
            self._roots[self.namespace_at[row]] = older
        if parent >= 0:
            self.children_at[parent] -= 1
        self.parent_at[row] = self.older_at[row] = self.newer_at[row] = NONE

    # --- walking ------------------------------------------------------------------------------------------

    def first_root(self, namespace: int) -> int:
        """The newest block 0 of a namespace, -1 if it has none; the others follow by ``older``."""
        return self._roots[namespace]

    def descendants(self, row: int, limit: int = 256) -> list[int]:
        """Up to ``limit`` rows of the subtree under ``row``, itself included, each after all of its children.

        So they can be removed or detached in this order. To drop a whole subtree in pieces, do that and call again,
        until a call has answered ``row`` (always as the last one).
        """
        found: list[int] = []
        older, parent = self.older_at, self.parent_at
        at = self._deepest(row)
        while len(found) < limit:
            found.append(at)
            if at == row:
                break
            sibling = older[at]
            at = parent[at] if sibling < 0 else self._deepest(sibling)
        return found

    def _deepest(self, row: int) -> int:
        first_child = self.first_child_at
        while (child := first_child[row]) >= 0:
            row = child
        return row

    def rows_of_namespace(self, namespace: int) -> Iterator[IntArray]:
        """Rows of a namespace in pieces (one piece a scan of 65,536 rows, maybe empty); detached rows are included.

        Rows may come and go between two pieces: what was there all the time is reported once.
        """
        start = 0
        while start < self._pool.fresh:
            part = slice(start, min(start + _SCAN, self._pool.fresh))
            yield start + np.flatnonzero((self.namespace[part] == namespace) & (self.state[part] != FREE))
            start += _SCAN

    # --- parts --------------------------------------------------------------------------------------------

    def add_part(self, row: int, part: int) -> int:
        """A new part row of one block, without slots. Raises NoSpace when the part table is full."""
        return int(self.parts.add(np.array([row], np.int64), part)[0])

    def add_parts(self, rows: IntArray, part: int) -> IntArray:
        """``add_part`` of several (distinct) blocks, vectorised. Raises NoSpace, all or none."""
        return self.parts.add(rows, part)

    def part_row(self, row: int, part: int) -> int:
        """The part row of (block, part), -1 if it has none."""
        return self.parts.find(row, part)

    def part_rows(self, rows: IntArray, part: int) -> IntArray:
        """The part row of each block, -1 where it has none, vectorised. ``rows`` holds no -1."""
        return self.parts.find_many(rows, part)


def _halves(key: Key) -> tuple[int, int]:
    if isinstance(key, tuple):
        return key
    return int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
