"""Small stores on /dev/shm, filled with real bytes, for tests."""

from __future__ import annotations

import fcntl
import os
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvstore.core.checksum import chunk_sums, chunking, part_seed
from kvstore.core.keys import KeyArray, chain_keys, key_array
from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.tiers.index import EVICTING, FREE, READY, WRITING
from kvstore.tiers.memfile import purge
from kvstore.tiers.sessions import Session
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import GRANULE, NO_SLOT
from kvstore.tiers.values import ChainSlice, NamespaceView, PutOutcome, Reserved, StoreConfig

MIB = 1 << 20
STORED = int(PutOutcome.STORED)
ONE = NamespaceSpec("one", 4, parts=(PartSpec("0", 100_000),))
TWO = NamespaceSpec("two", 4, parts=(PartSpec("tp0", 70_000), PartSpec("tp1", 9_000, layers=3)))
HYBRID = NamespaceSpec("hybrid", 4, parts=(PartSpec("full", 4096), PartSpec("window", 4096, "window", "window")))


def small(capacity: int = 16 * MIB, **changes: object) -> StoreConfig:
    """A configuration with a memory file of its own."""
    path = Path(f"/dev/shm/kvstore-unit-{uuid.uuid4().hex}.mem")
    return replace(StoreConfig(path, capacity, max_sessions=8, segment_bytes=MIB), **changes)  # type: ignore[arg-type]


@contextmanager
def opened(config: StoreConfig | None = None, **changes: object) -> Iterator[BlockStore]:
    """A store that is closed and removed at the end."""
    config = config or small(**changes)
    store = BlockStore(config)
    try:
        yield store
    finally:
        store.close()
        purge(config.memory_file)


class ProcessLock:
    """Stands for a client's process: holds a byte of the lock file until ``die``. (An open-file lock, so that one test
    process can be several.)"""

    def __init__(self, store: BlockStore, session: Session) -> None:
        self._fd = os.open(f"{store.config.memory_file}.lock", os.O_RDONLY)
        lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, session.index, 1, 0)
        fcntl.fcntl(self._fd, 37, lock)  # F_OFD_SETLK

    def die(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def keys_of(spec: NamespaceSpec, path: tuple[int, ...]) -> KeyArray:
    """Keys of a chain whose i-th block has the tokens path[i], ..., path[i]."""
    tokens = np.repeat(np.array(path, np.uint32), spec.block_tokens)
    return key_array(chain_keys(spec.root, tokens, spec.block_tokens))


def content(seed: int, length: int) -> bytes:
    """Bytes that no other seed has, in every 8-byte word."""
    words = np.arange(-(-length // 8), dtype=np.uint64) + np.uint64(seed << 32)
    return words.tobytes()[:length]


def sums_of(spec: NamespaceSpec, key: bytes, part: int, data: bytes) -> list[int]:
    return [int(one) for one in chunk_sums(memoryview(data), part_seed(key, part), chunking(spec.parts[part]))]


def fill(
    store: BlockStore, view: NamespaceView, keys: KeyArray, parts: tuple[int, ...], reserved: Reserved, seed: int
) -> tuple[np.ndarray, dict[tuple[bytes, int], bytes]]:
    """Writes the reserved slots of ``keys``; the checksums, and the bytes by (key, part)."""
    sums: list[int] = []
    written = {}
    offsets = iter(reserved.offsets.tolist())
    for at, outcome in enumerate(reserved.outcomes):
        if outcome != STORED:
            continue
        for part in parts:
            key = keys[at].tobytes()
            data = content(seed * 1000 + at * 64 + part, view.spec.parts[part].bytes)
            offset = next(offsets)
            store.dram.writable(offset, len(data))[:] = data
            sums.extend(sums_of(view.spec, key, part, data))
            written[key, part] = data
    return np.array(sums, np.uint64), written


def put(
    store: BlockStore, session: Session, view: NamespaceView, keys: KeyArray, first: int = 0,
    parts: tuple[int, ...] = (), seed: int = 1,
) -> tuple[bytes, dict[tuple[bytes, int], bytes]]:  # fmt: skip
    """Reserve, fill and commit ``keys[first:]``; the outcomes of all of them, and the bytes stored by (key, part)."""
    wanted = parts or tuple(range(len(view.spec.parts)))
    parent = keys[first - 1].tobytes() if first else b""
    reserved = store.reserve(session, view.handle, ChainSlice(keys[first:], parent, first), parts)
    sums, written = fill(store, view, keys[first:], wanted, reserved, seed)
    outcomes = bytearray(reserved.outcomes)
    if reserved.id:
        places = [at for at, outcome in enumerate(reserved.outcomes) if outcome == STORED]
        for at, outcome in zip(places, store.commit(session, reserved.id, sums), strict=True):
            outcomes[at] = outcome
    return bytes(outcomes), written


def read(store: BlockStore, view: NamespaceView, offsets: np.ndarray, parts: tuple[int, ...] = ()) -> list[bytes]:
    """Bytes behind the offsets of an acquire, in their order; b"" for holes."""
    wanted = parts or tuple(range(len(view.spec.parts)))
    lengths = [view.spec.parts[part].bytes for part in wanted]
    return [
        bytes(store.dram.readable(offset, lengths[at % len(lengths)])) if offset else b""
        for at, offset in enumerate(offsets.tolist())
    ]


def _count_moves(store: BlockStore, held: dict[int, int], owners: dict[int, str]) -> None:
    """What moves between tiers hold."""
    placement = store._state.placement
    if placement:
        for row, moves in placement.moving.items():
            held[row] += moves
        owners.update(dict.fromkeys(placement.transit, "transit"))


def audit(store: BlockStore) -> None:
    """Everything the store believes agrees with everything else it believes, once upkeep lets go of what it holds."""
    end = time.monotonic() + 5
    while True:
        try:
            return _audit(store)
        except AssertionError:
            if time.monotonic() > end:
                raise
        time.sleep(0.02)


def _audit(store: BlockStore) -> None:
    state = store._state
    with state.lock:
        index, parts = state.index, state.index.parts
        rows = np.flatnonzero(index.state[: index.rows_used] != FREE).tolist()
        owners: dict[int, str] = {}
        held = dict.fromkeys(rows, 0)
        waiting = dict.fromkeys(rows, 0)
        for session in state.sessions.values():
            for lease in session.leases.values():
                for row in lease.rows.tolist():
                    held[row] += 1
            for reservation in session.reservations.values():
                for row in reservation.rows.tolist():
                    held[row] += 1
                    waiting[row] += 1
                for slot in reservation.slots.reshape(-1).tolist():
                    assert owners.setdefault(slot, "reservation") == "reservation"
            for slot in session.loose.tolist():
                owners[slot] = "loose"
        _count_moves(store, held, owners)
        for row in rows:
            assert index.leases_at[row] == held[row], f"row {row} counts {index.leases_at[row]} holds, not {held[row]}"
            status, ready = index.state_at[row], index.ready_at[row]
            assert (status == READY) == bool(ready) or status == EVICTING
            assert status != EVICTING or held[row], "an evicted block without a lease is still here"
            assert status != WRITING or waiting[row], "a block nobody writes is WRITING"
            parent = index.parent_at[row]
            if status != EVICTING and index.block_at[row]:
                assert parent >= 0, "a block without its parent is here"
                assert index.state_at[parent] in (READY, WRITING)
                assert index.block_at[parent] + 1 == index.block_at[row]
            for at in parts.of(row):
                slot = parts.slot_at[0][at]
                if slot != NO_SLOT:
                    assert slot not in owners, f"slot {slot} has two owners"
                    owners[slot] = "block"
        used = {slot for at in state.dram.classes() for slot in state.dram.used_slots(at).tolist()}
        assert used == set(owners), f"slots used {used ^ set(owners)}"
        assert state.unverified_parts == int(state.unverified.sum())
        assert state.writing == sum(index.state_at[row] != EVICTING and not index.ready_at[row] for row in rows)
    stat = store.stat()
    assert stat.tiers[0].backed_bytes <= store.config.capacity_bytes
    assert stat.tiers[0].used_bytes == sum(
        kind.granules * GRANULE * count for kind, _, count in state.dram.classes().values()
    )
