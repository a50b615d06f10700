"""Stores with an NVMe tier for tests, and what must hold in them whenever nothing moves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvstore.core.keys import KeyArray
from kvstore.tiers.index import FREE, READY
from kvstore.tiers.memfile import purge
from kvstore.tiers.nvme.slots import State as SlotState
from kvstore.tiers.placement import Placement
from kvstore.tiers.sessions import Session
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import NO_SLOT, TierKind
from kvstore.tiers.values import AckLevel, ChainSlice, NamespaceView, StoreConfig
from tests.unit.tiers.stores import MIB, STORED, fill, small

DRAM, NVME = TierKind.DRAM, TierKind.NVME


def two_tiers(dram: int = 8 * MIB, nvme: int = 64 * MIB, **changes: object) -> StoreConfig:
    """A configuration with a memory file and an NVMe directory of its own; small segments, no scrubber."""
    directory = Path(tempfile.mkdtemp(prefix="kvstore-unit-")) / "nvme"
    config = small(dram, nvme_dir=directory, nvme_capacity_bytes=nvme, nvme_segment_bytes=MIB, nvme_scrub_bytes=0)
    return replace(config, **changes)  # type: ignore[arg-type]


def discard(config: StoreConfig) -> None:
    """Removes what a store left behind."""
    purge(config.memory_file)
    if config.nvme_dir:
        shutil.rmtree(config.nvme_dir.parent, ignore_errors=True)


@contextmanager
def opened(config: StoreConfig | None = None, **changes: object) -> Iterator[BlockStore]:
    """A two-tier store that is closed and removed at the end."""
    config = config or two_tiers(**changes)  # type: ignore[arg-type]
    store = BlockStore(config)
    try:
        yield store
    finally:
        store.close()
        discard(config)


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--sparse=always", source, target], check=True)


class Crash:
    """The files of a store as a SIGKILL of its node and its index process would leave them at this moment, at which
    ``note`` is called, with the store's lock held."""

    def __init__(self, store: BlockStore, note: Callable[[], None] = lambda: None) -> None:
        config, state = store.config, store._state
        assert config.nvme_dir
        assert state.placement
        self._memory, self._nvme = config.memory_file, config.nvme_dir
        self._kept = Path(tempfile.mkdtemp(prefix="kvstore-crash-", dir=config.nvme_dir.parent))
        index = state.placement.nvme._committer.index
        with state.lock:  # places change under it only
            note()
            if index:
                os.kill(index.pid, signal.SIGSTOP)
            _copy(self._memory, self._kept / "memory")
            for name in self._files(self._nvme):
                (self._kept / name).parent.mkdir(exist_ok=True)
                _copy(self._nvme / name, self._kept / name)
            if index:
                os.kill(index.pid, signal.SIGCONT)

    @staticmethod
    def _files(directory: Path) -> list[Path]:
        found = [*directory.glob("segment-*"), *(directory / "index").iterdir()]
        return [path.relative_to(directory) for path in found]

    def happen(self, memory: bool = True) -> None:
        """Once the store is closed: what it did since is undone. The lock files stay, so clients live on. ``memory``
        False: it is lost."""
        if memory:
            _copy(self._kept / "memory", self._memory)
        else:
            purge(self._memory)
        for name in self._files(self._nvme):
            (self._nvme / name).unlink()
        for name in self._files(self._kept):
            _copy(self._kept / name, self._nvme / name)
        shutil.rmtree(self._kept)


def still(store: BlockStore, patience: float = 20.0) -> None:
    """Waits until nothing moves and everything written is durable or failed."""
    movement, deadline = store._movement, time.monotonic() + patience
    assert movement
    while time.monotonic() < deadline:
        movement.settle()
        with movement.mover._changed:
            moves = len(movement.mover._schedule)
        with store._state.lock:
            assert store._state.placement
            busy = moves or store._state.placement.moving or store._state.placement.unsettled
        if not busy:
            return
        time.sleep(0.002)
    raise AssertionError(f"blocks still move after {patience} s")


def audit_tiers(store: BlockStore) -> None:
    """Places, memberships and child counts agree with each other; at a moment when nothing moves."""
    placement = store._state.placement
    assert placement
    while True:
        still(store)
        with store._state.lock:
            if not placement.moving and not placement.unsettled:
                _audit_tiers(store, placement)
                return


def _audit_tiers(store: BlockStore, placement: Placement) -> None:
    state = store._state
    residence, index, parts = placement.residence, state.index, state.index.parts
    assert not +placement.leaving
    assert not placement.transit
    rows = np.flatnonzero(index.state[: index.rows_used] != FREE).tolist()
    slots: dict[int, int] = {}
    children = {tier: dict.fromkeys(rows, 0) for tier in residence.tiers}
    for row in rows:
        for tier in residence.tiers:
            mask = residence.parts_at[tier][row]
            found = sum(1 << int(parts.part[at]) for at in parts.of(row) if parts.slot_at[tier][at] != NO_SLOT)
            assert mask == found, f"row {row} has parts {found:b} in {tier.name}, says {mask:b}"
            if residence.has(row, tier) and index.parent_at[row] >= 0:
                children[tier][index.parent_at[row]] += 1
        if index.state_at[row] == READY:
            assert index.ready_at[row] == placement.dram_at[row] | placement.nvme_at[row]
            assert residence.has(row, NVME) == bool(placement.nvme_at[row])
            assert residence.has(row, DRAM) or not placement.dram_at[row]
        for at in parts.of(row):
            if (slot := parts.slot_at[NVME][at]) != NO_SLOT:
                assert slots.setdefault(slot, row) == row, f"NVMe slot {slot} has two owners"
                if index.state_at[row] == READY:
                    found_state = placement.nvme._slots.state(slot, parts.generation_at[NVME][at])
                    assert found_state is SlotState.STORED, f"NVMe slot {slot} is {found_state.name}"
    for tier in residence.tiers:
        counted = {row: int(residence.children[tier][row]) for row in rows}
        assert counted == children[tier], f"children in {tier.name}"
    free = np.flatnonzero(index.state[: index.rows_used] == FREE)
    assert not residence.member[free].any()
    assert not (placement.dram[free] | placement.on_nvme[free]).any()
    assert placement.fresh_rows == np.count_nonzero(placement.fresh)
    used = placement.nvme._slots.in_use
    assert used == len(slots), f"{used} NVMe slots are in use, blocks have {len(slots)}"


def put_durably(
    store: BlockStore, session: Session, view: NamespaceView, keys: KeyArray, seed: int
) -> tuple[bytes, dict[tuple[bytes, int], bytes]]:
    """Outcomes of a whole chain put with acknowledgement DURABLE, and the bytes by (key, part)."""
    deadline, parts = time.monotonic() + 5, tuple(range(len(view.spec.parts)))
    reserved = store.reserve(session, view.handle, ChainSlice(keys), (), ack=AckLevel.DURABLE, deadline=deadline)
    sums, written = fill(store, view, keys, parts, reserved, seed)
    outcomes = bytearray(reserved.outcomes)
    if reserved.id:
        places = [at for at, code in enumerate(outcomes) if code == STORED]
        codes = store.commit(session, reserved.id, sums, AckLevel.DURABLE, deadline)
        for at, code in zip(places, codes, strict=True):
            outcomes[at] = code
    return bytes(outcomes), written
