"""After a crash or a stop: what lies in the memory file becomes blocks again.

A slot is re-adopted when its header is sound, its namespace is known, and its parents are here up to block 0; all
others are dropped. Sessions whose process still lives keep the slots they may touch.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import ConfigError, KVStoreError
from kvstore.core.namespace import root_of
from kvstore.tiers.bulk import insert_many
from kvstore.tiers.columns import IntArray
from kvstore.tiers.index import READY
from kvstore.tiers.leases import Lease
from kvstore.tiers.registry import Registry
from kvstore.tiers.sessions import Session
from kvstore.tiers.state import State
from kvstore.tiers.tier import Entries, SlotArray, TierKind, U32Array, U64Array

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_UNKNOWN = 0xFFFF  # no namespace has this id
Mask = npt.NDArray[np.bool_]
U8Array = npt.NDArray[np.uint8]


@dataclass(slots=True)
class _Blocks:
    """Distinct blocks among the entries. ``entry``: one entry of each block; ``of``: the block of each entry."""

    entry: IntArray
    of: IntArray
    parent: IntArray  # block position, -1: none (block 0)
    sound: Mask  # the chain from block 0 is complete
    stamp: U32Array


def recover(state: State, registry: Registry, on_nvme: list[Entries]) -> None:
    """Fills an empty state from its memory file and what lies in its NVMe tier; nobody else uses it yet."""
    started = time.monotonic()
    gone = _dropped_on_nvme(state)
    in_memory, on_disk = list(state.dram.recover()), _nvme_entries(state, on_nvme, gone)
    entries = _joined(in_memory + on_disk)
    sizes = [sum(map(len, in_memory)), sum(map(len, on_disk))]
    tiers = np.repeat(np.array([TierKind.DRAM, TierKind.NVME], np.uint8), sizes)
    orphans = _living_sessions(state)
    good = _fitting(state, entries)
    dropped = [(entries.slots[~good], tiers[~good])]
    entries, tiers = _chosen(entries, good), tiers[good]
    blocks = _blocks(entries)
    keep = blocks.sound[blocks.of] & _first_of_its_kind(entries, blocks, tiers)
    _check_room(state, len(_once(entries, blocks.of, keep)))
    inserted = _insert(state, entries, blocks)
    rows = inserted[blocks.of]
    keep &= rows >= 0
    for tier in (TierKind.DRAM, TierKind.NVME):
        _place(state, entries, keep & (tiers == tier), rows, tier)
    _count(state, entries, _once(entries, rows, keep))
    _tell_policy(state, entries, blocks, inserted)
    dropped.append((entries.slots[~keep], tiers[~keep]))
    state.counters["dropped_orphan_parts"] += _free(state, dropped)  # what a living session may touch is taken again
    _adopt_sessions(state, registry, entries, keep & (tiers == TierKind.DRAM), rows, orphans)
    _finish_drops(state, gone)
    state.counters["adopted_parts"] += int(keep.sum())
    state.recovery_seconds = time.monotonic() - started


def _dropped_on_nvme(state: State) -> list[int]:
    """NVMe's numbers of namespaces that were being dropped when the node died."""
    if state.placement is None:
        return []
    roots = set(state.namespaces.fading.values())
    known = state.placement.nvme.namespaces() if roots else {}
    return [number for number, canonical in known.items() if root_of(canonical) in roots]


def _finish_drops(state: State, gone: list[int]) -> None:
    """Their slots are free. The records stay until NVMe has forgotten them for good (or, when it could not be opened
    this time, until it can)."""
    fading = list(state.namespaces.fading)
    if state.placement:
        for number in gone:
            state.placement.nvme.drop_namespace(number)
        state.placement.retiring.update({number: state.placement.nvme.barrier() for number in fading})
    elif state.config.nvme_dir is None:
        for number in fading:
            state.namespaces.forget(number)


def _nvme_entries(state: State, batches: list[Entries], gone: list[int]) -> list[Entries]:
    """What the NVMe tier has, its namespaces renumbered as they are here; those that have no room here are left out."""
    if state.placement is None:
        return []
    ours = np.full(1 << 16, _UNKNOWN, np.uint16)
    for number, canonical in state.placement.nvme.namespaces().items():
        if number in gone:
            continue
        with contextlib.suppress(KVStoreError):
            root = state.namespaces.open(canonical, strict=False).root
            found = state.namespaces.by_root(root)
            state.placement.numbers[found.id] = number
            ours[number] = found.id
    return [replace(batch, namespaces=ours[batch.namespaces]) for batch in batches]


def _joined(batches: list[Entries]) -> Entries:
    wide = np.empty((0, 2), np.uint64)
    nothing = {"keys": wide, "parents": wide, "checksums": np.empty(0, np.uint64)}
    columns: dict[str, Any] = {}
    for field in fields(Entries):
        found = [getattr(batch, field.name) for batch in batches] or [nothing.get(field.name, np.empty(0, np.int64))]
        columns[field.name] = np.concatenate(found)
    return Entries(**columns)


def _chosen(entries: Entries, good: Mask) -> Entries:
    if good.all():
        return entries
    columns = {field.name: getattr(entries, field.name)[good] for field in fields(Entries) if field.name != "checksums"}
    return Entries(checksums=entries.checksums, **columns)


def _check_room(state: State, parts: int) -> None:
    if parts > state.index.parts.max_parts:
        raise ConfigError(
            f"{state.file.path} holds {parts} parts, max_parts is {state.index.parts.max_parts}; raise it, or run "
            "`kvstore purge`"
        )


# --- which entries are sound ----------------------------------------------------------------------------------


def _fitting(state: State, entries: Entries) -> Mask:
    """Entries whose namespace is known and has such a part of that length."""
    good = np.zeros(len(entries), np.bool_)
    for number in np.flatnonzero(np.bincount(entries.namespaces)).tolist():
        namespace = state.namespaces.by_id(number)
        for part, cut in enumerate(namespace.cuts if namespace else ()):
            mine = (entries.namespaces == number) & (entries.parts == part)
            good |= mine & (entries.lengths == cut.length) & (entries.chunks == cut.count)
    return good


def _mixed(keys: U64Array, namespaces: npt.NDArray[np.uint16]) -> U64Array:
    return np.asarray((keys[:, 0] ^ keys[:, 1] * _MIX[0]) + namespaces.astype(np.uint64) * _MIX[1])


def _same(entries: Entries, a: IntArray, b: IntArray, keys: U64Array) -> Mask:
    """Whether entry a's key is row b of ``keys``, in the same namespace."""
    return np.asarray((entries.keys[a] == keys[b]).all(axis=1) & (entries.namespaces[a] == entries.namespaces[b]))


def _blocks(entries: Entries) -> _Blocks:
    """Groups the entries by block and follows the parents. Two keys with the same mix can only cost blocks."""
    mixed = _mixed(entries.keys, entries.namespaces)
    order = np.argsort(mixed, kind="stable")
    new = np.ones(len(order), np.bool_)
    new[1:] = ~_same(entries, order[1:], order[:-1], entries.keys)
    of = np.empty(len(order), np.int64)
    of[order] = np.cumsum(new) - 1
    entry = order[new]
    stamp = np.zeros(len(entry), np.uint32)
    np.maximum.at(stamp, of, entries.stamps)
    parent, rooted = _parents(entries, entry, mixed[entry])
    return _Blocks(entry, of, parent, _reaches_root(parent, rooted), stamp)


def _parents(entries: Entries, entry: IntArray, mixed: U64Array) -> tuple[IntArray, Mask]:
    """Block position of each block's parent (-1: none), and whether that is as it must be."""
    if not len(entry):
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    wanted = _mixed(entries.parents[entry], entries.namespaces[entry])
    at = np.minimum(np.searchsorted(mixed, wanted), len(mixed) - 1)
    found = _same(entries, entry[at], entry, entries.parents)
    found &= entries.blocks[entry[at]].astype(np.int64) + 1 == entries.blocks[entry]
    root = entries.blocks[entry] == 0
    return np.where(root, -1, np.where(found, at, -1)), root | found


def _reaches_root(parent: IntArray, good: Mask) -> Mask:
    """Blocks whose whole chain to block 0 is good: each round looks twice as far up as the one before."""
    sound, above = good.copy(), np.where(good, parent, -1)
    while (above >= 0).any():
        here = above >= 0
        sound[here] &= sound[above[here]]
        above[here] = above[above[here]]
    return sound


def _first_of_its_kind(entries: Entries, blocks: _Blocks, tiers: U8Array) -> Mask:
    """False for a second entry of the same (block, part, tier), and where entries disagree about a block's place."""
    keep = np.full(len(entries), len(entries) == len(blocks.entry))
    if not keep.all():
        keep[np.unique((blocks.of * 64 + entries.parts) * 4 + tiers, return_index=True)[1]] = True
    return np.asarray(keep & (entries.blocks == entries.blocks[blocks.entry][blocks.of]))


# --- into the index -------------------------------------------------------------------------------------------


def _insert(state: State, entries: Entries, blocks: _Blocks) -> IntArray:
    """Row of each block, -1 for those that are not sound (or have no room in the index)."""
    rows = np.full(len(blocks.entry), -1, np.int64)
    depth = entries.blocks[blocks.entry]
    chosen = np.flatnonzero(blocks.sound)
    chosen = chosen[np.argsort(depth[chosen], kind="stable")]  # parents first: where the index ends, chains end
    chosen = chosen[: state.index.max_blocks - len(state.index)]
    place = np.full(len(blocks.entry), -1, np.int64)
    place[chosen] = np.arange(len(chosen))
    above = blocks.parent[chosen]
    which = blocks.entry[chosen]
    parents = np.where(above >= 0, place[above], -1)
    rows[chosen] = insert_many(state.index, entries.namespaces[which], entries.keys[which], parents, depth[chosen])
    return rows


def _tell_policy(state: State, entries: Entries, blocks: _Blocks, rows: IntArray) -> None:
    """In order of last use, with the times they had."""
    chosen = np.flatnonzero(rows >= 0)
    ages = np.maximum(time.time() - blocks.stamp[chosen].astype(np.float64), 0.0)
    depth = entries.blocks[blocks.entry[chosen]].astype(np.int64)
    order = np.lexsort((-depth, -ages))
    state.policy.restored(rows[chosen[order]], ages[order], time.monotonic())


def _once(entries: Entries, blocks: IntArray, keep: Mask) -> IntArray:
    """One kept entry of each (block, part), though two tiers have it."""
    kept = np.flatnonzero(keep)
    if len(kept) and np.bincount(blocks[kept]).max() == 1:
        return kept
    return np.asarray(kept[np.unique(blocks[kept] * 64 + entries.parts[kept], return_index=True)[1]])


def _free(state: State, dropped: list[tuple[SlotArray, U8Array]]) -> int:
    """Slots that are not re-adopted become free: how many."""
    slots, tiers = (np.concatenate(column) for column in zip(*dropped, strict=True))
    for tier in state.tiers:
        mine = slots[tiers == tier.kind]
        if len(mine):
            tier.free(mine)
    return len(slots)


def _place(state: State, entries: Entries, keep: Mask, rows: IntArray, tier: TierKind) -> None:
    """Locations and READY bits of the parts that stay in one tier."""
    index, placement = state.index, state.placement
    for part in np.flatnonzero(np.bincount(entries.parts[keep])).tolist():
        mine = np.flatnonzero(keep & (entries.parts == part))
        at = index.part_rows(rows[mine], part)
        new = np.flatnonzero(at < 0)
        at[new] = index.add_parts(rows[mine[new]], part)
        index.parts.slot[tier][at] = entries.slots[mine]
        index.parts.generation[tier][at] = entries.generations[mine]
        index.ready[rows[mine]] |= np.uint64(1 << part)
        index.importance[rows[mine]] = entries.importance[mine]
        if placement:
            placement.residence.parts[tier][rows[mine]] |= np.uint64(1 << part)
        if tier == TierKind.DRAM:
            state.unverified[at] = 1
            state.unverified_parts += len(at)
    found = np.zeros(index.rows_used, np.bool_)
    found[rows[keep]] = True
    there = np.flatnonzero(found)
    index.state[there] = READY
    if placement and len(there):
        placement.residence.enter(there, tier)


def _count(state: State, entries: Entries, once: IntArray) -> None:
    state.ready_bytes = int(entries.lengths[once].sum())
    for namespace in state.namespaces:
        namespace.rows = state.index.blocks_of(namespace.id)
        namespace.bytes = int(entries.lengths[once[entries.namespaces[once] == namespace.id]].sum())


# --- sessions of the last boot --------------------------------------------------------------------------------


def _living_sessions(state: State) -> list[tuple[Session, SlotArray]]:
    """Sessions of earlier boots whose process lives, and what each may touch. The records of the dead are cleared."""
    table, found = state.holdings.table, []
    for index, name in table.recorded():
        if state.lock_file.locked(index):
            found.append((Session(index, True, name, table.max_leased_slots, orphan=True), table.permitted(index)))
        else:
            table.clear(index)
    return found


def _adopt_sessions(
    state: State, registry: Registry, entries: Entries, keep: Mask, rows: IntArray,
    orphans: list[tuple[Session, SlotArray]],
) -> None:  # fmt: skip
    """Each living session holds the blocks it may read, and the slots that it may still write to."""
    kept = np.flatnonzero(keep)
    order = kept[np.argsort(entries.slots[kept])]
    for session, permitted in orphans:
        mine = order[np.isin(entries.slots[order], permitted)]
        held = np.unique(rows[mine])
        state.hold(held)
        lease = Lease(state.holdings.next_id(), held, len(mine), 0, None)
        session.leases[lease.id] = lease
        session.loose = state.dram.hold(permitted)
        registry.adopt(session)
