"""Filling an index with many blocks at once, after a restart: what ``insert`` does one by one, vectorised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import NONE, WRITING, BlockIndex
from kvstore.tiers.tier import U16Array, U32Array, U64Array


def insert_many(
    index: BlockIndex, namespaces: U16Array, keys: KeyArray, parents: IntArray, blocks: U32Array
) -> IntArray:
    """New rows, state WRITING, for blocks that are not in the index; ``parents``: position among them, -1: none.

    The caller has checked that there is room. Siblings end up in the order given, the last one newest.
    """
    rows = index._pool.take_many(len(keys))
    if not len(rows):
        return rows
    index.key_low[rows], index.key_high[rows] = keys[:, 0], keys[:, 1]
    index.namespace[rows], index.block[rows], index.state[rows] = namespaces, blocks, WRITING
    for name in ("leases", "ready", "importance", "pins", "children"):
        getattr(index, name)[rows] = 0
    for name in ("first_part", "first_child", "newer", "older"):
        getattr(index, name)[rows] = NONE
    index.parent[rows] = np.where(parents >= 0, rows[parents], NONE)
    _link_buckets(index, rows, _buckets(index, namespaces, keys[:, 0]))
    _link_siblings(index, rows)
    for number, count in zip(*np.unique(namespaces, return_counts=True), strict=True):
        index._counts[int(number)] += int(count)
    return rows


def _buckets(index: BlockIndex, namespaces: U16Array, low: U64Array) -> npt.NDArray[np.int64]:
    found = np.zeros(len(low), np.int64)
    for number in np.unique(namespaces).tolist():
        mine = namespaces == number
        found[mine] = index._buckets(number, np.ascontiguousarray(low[mine]))
    return found


def _link_buckets(index: BlockIndex, rows: IntArray, buckets: npt.NDArray[np.int64]) -> None:
    order = np.argsort(buckets, kind="stable")
    rows, buckets = rows[order], buckets[order]
    first = np.ones(len(rows), np.bool_)
    first[1:] = buckets[1:] != buckets[:-1]
    before = np.roll(rows, 1) + 1
    index._next[rows] = np.where(first, index._heads[buckets], before)
    last = np.roll(first, -1)
    index._heads[buckets[last]] = rows[last] + 1


def _link_siblings(index: BlockIndex, rows: IntArray) -> None:
    parents, roots = index.parent[rows].astype(np.int64), np.asarray(index._roots)
    groups = np.where(parents >= 0, parents, -1 - index.namespace[rows].astype(np.int64))
    order = np.argsort(groups, kind="stable")
    rows, groups, parents = rows[order], groups[order], parents[order]
    same = groups[1:] == groups[:-1]
    index.older[rows[1:][same]], index.newer[rows[:-1][same]] = rows[:-1][same], rows[1:][same]
    first, last = np.append(True, ~same), np.append(~same, True)
    for here, newest, at in (
        (parents >= 0, index.first_child, parents),
        (parents < 0, roots, -1 - groups),
    ):
        oldest, youngest = here & first, here & last
        known = newest[at[oldest]]
        index.older[rows[oldest]] = known
        index.newer[known[known >= 0]] = rows[oldest][known >= 0]
        newest[at[youngest]] = rows[youngest]
    held, counts = np.unique(parents[parents >= 0], return_counts=True)
    index.children[held] += counts.astype(np.int32)
