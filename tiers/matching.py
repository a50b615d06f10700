"""Reading: the longest cached prefix of a chain, and leases on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import InvalidArgument, SessionLost
from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import FEW, IntArray
from kvstore.tiers.index import READY
from kvstore.tiers.leases import NO_ROWS, Lease, flat
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.sessions import Session
from kvstore.tiers.state import PIECE, State
from kvstore.tiers.tier import GRANULE, SlotArray, TierKind, U32Array, U64Array
from kvstore.tiers.values import NO_GENERATIONS, NO_OFFSETS, Acquired, MatchResult, MissReason, PartMatch

if TYPE_CHECKING:
    from kvstore.tiers.placement import Placement

_COUNT = np.arange(PIECE, dtype=np.uint32)
_SHIFT = np.uint64(GRANULE.bit_length() - 1)
_USED = {1: "nvme_hit_blocks", 2: "prefetch_used_blocks"}  # counters, by why a block was brought to DRAM


@dataclass(slots=True)
class Found:
    """A prefix of a chain under lease: rows from block 0 on, those of them leased, and where their parts lie."""

    rows: IntArray
    prefix: int
    miss: MissReason
    lease: Lease | None
    slots: list[SlotArray]  # by part
    generations: list[U32Array]
    part_rows: list[IntArray]
    loaded: bool = False  # it was waited for


def part_mask(namespace: Namespace, parts: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The parts meant (none given: all) and the mask of those needed for a hit. Raises InvalidArgument."""
    if not parts:
        return tuple(range(len(namespace.cuts))), namespace.needed
    wanted = 0
    for part in parts:
        if not 0 <= part < len(namespace.cuts) or wanted >> part & 1:
            raise InvalidArgument(
                f"part {part} is given twice or is not 0 to {len(namespace.cuts) - 1}: the namespace has "
                f"{len(namespace.cuts)} parts",
                field="parts",
            )
        wanted |= 1 << part
    return tuple(parts), wanted & namespace.needed


class Matcher:
    """Finds prefixes. Each method takes the lock itself, for at most 256 keys at a time."""

    def __init__(self, state: State) -> None:
        self._state = state

    # --- match ---------------------------------------------------------------------------------------------

    def match(self, namespace: Namespace, keys: KeyArray, parts: Sequence[int], request: int) -> MatchResult:
        """How much of a chain is here, by part and tier. With a request id it counts as use."""
        wanted, mask = part_mask(namespace, parts)
        state, need = self._state, np.uint64(mask)
        pieces: list[npt.NDArray[np.uint64]] = []
        path: list[IntArray] = []
        resident, whole = 0, True
        for start in range(0, len(keys), PIECE):
            piece = keys[start : start + PIECE]
            with state.lock:
                rows = self._resident(namespace.id, piece, start)
                ready = state.index.ready[rows]
            pieces.append(ready)
            if whole:
                path.append(rows[: _leading((ready & need) == need)])
                whole = len(path[-1]) == len(rows)
            resident += len(rows)
            if len(rows) < len(piece):
                break
        ready = np.concatenate(pieces) if pieces else np.empty(0, np.uint64)
        blocks = sum(len(rows) for rows in path)
        miss = self.miss(namespace, keys, blocks, mask)
        if request:
            self._touch_again(namespace, keys, blocks, path, request)
        namespace.used = time.time()
        self._count(len(keys), blocks)
        found = tuple(_part_match(namespace, part, ready) for part in wanted)
        return MatchResult(blocks, self._by_tier(path, blocks, need), found, miss)

    def _by_tier(self, path: list[IntArray], blocks: int, need: np.uint64) -> tuple[tuple[TierKind, int], ...]:
        placement = self._state.placement
        if placement is None:
            return ((TierKind.DRAM, blocks),)
        rows = np.concatenate(path) if path else NO_ROWS
        return ((TierKind.DRAM, _leading(placement.dram[rows] & need == need)), (TierKind.NVME, blocks))

    def _count(self, asked: int, found: int) -> None:
        with self._state.lock:
            counters = self._state.counters
            counters["match_calls"] += 1
            counters["match_hit_blocks"] += found
            counters["match_missed_blocks"] += asked - found

    def _touch_again(
        self, namespace: Namespace, keys: KeyArray, blocks: int, path: list[IntArray], request: int
    ) -> None:
        """A path found in several pieces may have lost blocks in between: only what is still there is touched."""
        state = self._state
        rows = np.concatenate(path) if path else NO_ROWS
        with state.lock:
            if len(path) > 1:
                index = state.index
                same = (index.state[rows] == READY) & (index.key_low[rows] == keys[:blocks, 0])
                rows = rows[: _leading(same & (index.namespace[rows] == namespace.id))]
            state.touches.append(rows)
            state.policy.touched(rows, request, time.monotonic(), len(keys))

    def _resident(self, number: int, keys: KeyArray, start: int) -> IntArray:
        """Rows of the leading READY blocks (any part) of a piece that begins at block ``start``."""
        index = self._state.index
        rows = index.find(number, keys)
        good = index.state[rows] == READY  # -1 reads some row; it is ruled out below
        good &= index.block[rows] == _COUNT[: len(rows)] + np.uint32(start)
        good &= rows >= 0
        return rows[: _leading(good)]

    def _complete(self, number: int, keys: KeyArray, start: int, need: np.uint64) -> IntArray:
        """Rows of the leading blocks that have all parts in ``need`` (not 0) READY."""
        index = self._state.index
        if len(keys) < FEW:
            return np.array(self._complete_few(number, keys, start, int(need)), np.int64)
        rows = index.find(number, keys)
        good = index.ready[rows] & need == need
        good &= index.block[rows] == _COUNT[: len(rows)] + np.uint32(start)
        good &= rows >= 0
        return rows[: _leading(good)]

    def _complete_few(self, number: int, keys: KeyArray, start: int, need: int) -> list[int]:
        index, rows = self._state.index, []
        ready, block = index.ready_at, index.block_at
        for at, row in enumerate(index.find_each(number, keys), start):
            if row < 0 or ready[row] & need != need or block[row] != at:
                break
            rows.append(row)
        return rows

    def miss(self, namespace: Namespace, keys: KeyArray, blocks: int, mask: int) -> MissReason:
        """Why the prefix ends after ``blocks`` blocks."""
        if blocks == len(keys):
            return MissReason.NONE
        index = self._state.index
        with self._state.lock:
            low, high = keys[blocks].tolist()
            row = index.find_one(namespace.id, (low, high))
            if row < 0 or index.block_at[row] != blocks:
                return MissReason.ABSENT
            missing = mask & ~index.ready_at[row]
            if index.state_at[row] != READY:
                return MissReason.PENDING
            pending = any(missing >> part & 1 and index.part_row(row, part) >= 0 for part in range(len(namespace.cuts)))
        return MissReason.PENDING if pending else MissReason.PART

    # --- acquire -------------------------------------------------------------------------------------------

    def acquire(
        self, session: Session, namespace: Namespace, keys: KeyArray, first: int, parts: tuple[int, ...], mask: int,
        request: int, max_blocks: int, again: bool = False,
    ) -> Found:  # fmt: skip
        """Leases blocks ``first`` to the end of the prefix (at most ``max_blocks``) and touches the whole prefix,
        unless this is a repetition (``again``). Of a prefix that is partly on NVMe only, what is in DRAM is leased."""
        state, need = self._state, np.uint64(mask)
        find = partial(self._complete, need=need) if mask else self._resident
        end = min(len(keys), first + max_blocks) if max_blocks else len(keys)
        held: list[IntArray] = []
        for start in range(0, max(len(keys), 1), PIECE):
            piece = keys[start : start + PIECE]
            last = len(piece) < PIECE or start + PIECE >= len(keys)
            state.lock.acquire()
            try:
                rows = find(namespace.id, piece, start)
                held.append(rows)
                if len(rows) == len(piece) and not last:
                    state.hold(rows)
                    continue
                return self._lease(session, namespace, keys, held, first, end, parts, request, again)
            finally:
                state.lock.release()
        raise AssertionError("unreachable: the last piece returns")

    def _lease(
        self, session: Session, namespace: Namespace, keys: KeyArray, pieces: list[IntArray], first: int, end: int,
        parts: tuple[int, ...], request: int, again: bool,
    ) -> Found:  # fmt: skip
        """Under the lock. All pieces but the last are held already."""
        state = self._state
        if session.closed:
            state.unhold(np.concatenate([NO_ROWS, *pieces[:-1]]))
            raise SessionLost("the session has ended; open a new one")
        path = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        early = len(path) - len(pieces[-1])
        if not again:
            self._note(path, len(keys), request)
        size = sum(namespace.cuts[part].length for part in parts)
        stop = min(end, len(path))
        room = state.holdings.room(session, len(parts), size)
        miss = MissReason.NONE
        if stop - first > room:
            stop, miss = first + room, MissReason.BUSY
        rows = path[first:stop] if first < stop else NO_ROWS
        if state.placement and len(rows) > (here := self._loaded(state.placement, rows, parts)):
            rows, miss = rows[:here], MissReason.LOADING
        state.hold(rows)
        if early:
            state.unhold(path[:early])
        found = Found(path, len(path), miss, None, [], [], [])
        if len(rows):
            self._locate(namespace, found, rows, parts)
            found.lease = self._enter(session, rows, flat(found.slots), size * len(rows))
        return found

    def _note(self, path: IntArray, asked: int, request: int) -> None:
        """The policy and the counters learn of a read."""
        state, counters = self._state, self._state.counters
        state.touches.append(path)
        state.policy.touched(path, request, time.monotonic(), asked)
        counters["acquire_calls"] += 1
        counters["hit_blocks"] += len(path)

    def _loaded(self, placement: Placement, rows: IntArray, parts: tuple[int, ...]) -> int:
        """How many of the first rows have all in DRAM that is READY of these parts."""
        mask = np.uint64(sum(1 << part for part in parts))
        here = _leading(self._state.index.ready[rows] & ~placement.dram[rows] & mask == 0)
        if placement.fresh_rows:
            for row in rows[:here][placement.fresh[rows[:here]] > 0].tolist():
                self._state.counters[_USED[placement.used(row)]] += 1
        return here

    def _locate(self, namespace: Namespace, found: Found, rows: IntArray, parts: tuple[int, ...]) -> None:
        index, table = self._state.index, self._state.index.parts
        slot, generation = table.slot[TierKind.DRAM], table.generation[TierKind.DRAM]
        for part in parts:
            at = index.part_rows(rows, part) if len(namespace.cuts) > 1 else index.first_part[rows].astype(np.int64)
            slots, generations = slot[at], generation[at]
            if not namespace.needed >> part & 1:  # window and state parts may have holes
                there = (index.ready[rows] >> np.uint64(part) & np.uint64(1)).astype(np.uint32)
                slots, generations = slots * there, generations * there
                at = np.where(there, at, -1)
            found.part_rows.append(at)
            found.slots.append(slots)
            found.generations.append(generations)

    def _enter(self, session: Session, rows: IntArray, slots: SlotArray, size: int) -> Lease:
        holdings = self._state.holdings
        positions = holdings.take(session, slots, size)
        lease = Lease(holdings.next_id(), rows, len(slots), size, positions, time.monotonic())
        session.leases[lease.id] = lease
        return lease

    # --- answers -------------------------------------------------------------------------------------------

    def answer(self, found: Found, first: int, spans: Sequence[range], miss: MissReason) -> Acquired:
        """What the client is told; called without the lock, the lease keeps everything in place."""
        lease = found.lease
        if lease is None:
            served = min(first, found.prefix)
            return Acquired(0, served, found.prefix, NO_OFFSETS, NO_GENERATIONS, NO_OFFSETS, miss)
        sums = [self.checksums(slots, span) for slots, span in zip(found.slots, spans, strict=True)]
        checksums = sums[0] if len(sums) == 1 else np.concatenate(sums, axis=1)
        return Acquired(
            lease=lease.id,
            blocks=first + len(lease.rows),
            prefix_blocks=found.prefix,
            offsets=flat(found.slots).astype(np.uint64) << _SHIFT,
            generations=flat(found.generations),
            checksums=checksums.reshape(-1),
            miss=miss,
            loaded=found.loaded,
        )

    def checksums(self, slots: SlotArray, chunks: range) -> U64Array:
        """Of chunks of each slot, shape (n, chunks); zeros for holes."""
        if np.count_nonzero(slots) == len(slots):
            return self._state.dram.checksums(slots, chunks)
        sums = np.zeros((len(slots), len(chunks)), np.uint64)
        there = np.flatnonzero(slots)
        sums[there] = self._state.dram.checksums(slots[there], chunks)
        return sums


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """How many are True before the first False."""
    first = int(good.argmin()) if len(good) else 0
    return len(good) if not len(good) or good[first] else first


def _part_match(namespace: Namespace, part: int, ready: npt.NDArray[np.uint64]) -> PartMatch:
    has = (ready >> np.uint64(part) & np.uint64(1)).astype(np.bool_)
    holes = namespace.spec.parts[part].kind != "prefix"
    return PartMatch(part, _leading(has), np.packbits(has, bitorder="little").tobytes() if holes else b"")
