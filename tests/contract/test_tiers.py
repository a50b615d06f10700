"""What every tier promises, whatever its slots are made of."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from kvstore.core.errors import InvalidArgument
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.dram import DramTier
from kvstore.tiers.hbm import HbmTier, HostMemoryDevice
from kvstore.tiers.layout import Layout
from kvstore.tiers.memfile import MemoryFile, purge
from kvstore.tiers.nvme.directory import NvmeConfig
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.tier import Entries, Slots, Tier, Transfer

MIB = 1 << 20
PART, CHUNKS = 200_000, 4
SPEC = NamespaceSpec("contract", 16, block_bytes=PART)


class Dram:
    """A memory file on /dev/shm."""

    def __init__(self, _: Path) -> None:
        self.path = Path(f"/dev/shm/kvstore-contract-{uuid.uuid4().hex}.mem")

    def open(self) -> tuple[Tier, list[Entries]]:
        plan: Callable[[int], Layout] = lambda page: Layout.plan(16 * MIB, page, 8, MIB)  # noqa: E731
        tier = DramTier(MemoryFile(self.path, bytes(16), "test", plan), threading.Lock())
        found = [] if tier.file.fresh else list(tier.recover())
        while tier.prefault():
            pass
        return tier, found

    def close(self, tier: Tier) -> None:
        assert isinstance(tier, DramTier)
        file = tier.file
        tier.close()
        file.close()

    def remove(self) -> None:
        purge(self.path)


class Nvme:
    """A directory on a disk."""

    def __init__(self, place: Path) -> None:
        self.config = NvmeConfig(place / "nvme", 16 * MIB, segment_bytes=MIB, commit_interval=0.01, scrub_bytes=0)

    def open(self) -> tuple[Tier, list[Entries]]:
        tier = NvmeTier(self.config)
        found = [entries for entries in tier.recover() if len(entries)]
        assert tier.open_namespace(SPEC.canonical()) == 0
        return tier, found

    def close(self, tier: Tier) -> None:
        tier.close()

    def remove(self) -> None:
        pass


class Hbm:
    """Memory of a device that is reached by copies only."""

    def __init__(self, _: Path) -> None:
        self.device = HostMemoryDevice(16 * MIB)

    def open(self) -> tuple[Tier, list[Entries]]:
        tier = HbmTier(self.device, 16 * MIB, MIB)
        return tier, list(tier.recover())

    def close(self, tier: Tier) -> None:
        tier.close()

    def remove(self) -> None:
        self.device.free(self.device.allocate(16 * MIB))  # all of it came back


class Bench:
    """One tier, opened and closed."""

    def __init__(self, kind: Dram | Nvme | Hbm) -> None:
        self.kind = kind
        self.tier, _ = kind.open()

    def reopen(self) -> list[Entries]:
        self.kind.close(self.tier)
        self.tier, found = self.kind.open()
        return found

    def allocate(self, count: int, patience: float = 5.0) -> Slots:
        """As many slots as there are within ``patience``: some tiers make room in the background."""
        taken: list[Slots] = []
        deadline = time.monotonic() + patience
        while (missing := count - sum(len(t.slots) for t in taken)) and time.monotonic() < deadline:
            taken.append(self.tier.allocate(PART, CHUNKS, missing))
            if not len(taken[-1].slots):
                time.sleep(0.005)
        return Slots(np.concatenate([t.slots for t in taken]), np.concatenate([t.generations for t in taken]))

    def write(self, slots: Slots, seed: int) -> list[bytes]:
        contents = [np.random.default_rng(seed + at).bytes(PART) for at in range(len(slots.slots))]
        moves = [Transfer(s, 0, memoryview(c)) for s, c in zip(slots.slots.tolist(), contents, strict=True)]
        self.tier.write(moves)
        return contents

    def read(self, slot: int, offset: int = 0, length: int = PART) -> bytes:
        into = bytearray(length)
        self.tier.read([Transfer(slot, offset, memoryview(into))])
        return bytes(into)


@pytest.fixture(params=[Dram, Nvme, Hbm], ids=["dram", "nvme", "hbm"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    kind = request.param(tmp_path)
    found = Bench(kind)
    yield found
    kind.close(found.tier)
    kind.remove()


def entries(slots: Slots) -> Entries:
    """Entries that differ in every column that may differ."""
    n = len(slots.slots)
    count = np.arange(1, n + 1)
    return Entries(
        slots=slots.slots, generations=slots.generations, namespaces=np.zeros(n, np.uint16),
        parts=np.zeros(n, np.uint8),
        keys=np.stack([count, count * 7], axis=1).astype(np.uint64),
        parents=np.stack([count - 1, (count - 1) * 7], axis=1).astype(np.uint64), blocks=(count - 1).astype(np.uint32),
        lengths=np.full(n, PART, np.uint64), importance=(count * 3).astype(np.uint16),
        stamps=np.full(n, 1_700_000_000, np.uint32), chunks=np.full(n, CHUNKS, np.uint32),
        checksums=np.arange(n * CHUNKS, dtype=np.uint64) * np.uint64(11),
    )  # fmt: skip


def test_slots_are_distinct_and_their_bytes_do_not_touch(bench: Bench) -> None:
    slots = bench.allocate(9)
    assert len(set(slots.slots.tolist())) == 9
    contents = bench.write(slots, 1)
    assert [bench.read(slot) for slot in slots.slots.tolist()] == contents


def test_any_range_of_a_slot_can_be_written_and_read(bench: Bench) -> None:
    slots = bench.allocate(3)
    contents = bench.write(slots, 1)
    slot = int(slots.slots[1])
    changed = bytearray(contents[1])
    for offset, length in ((0, 1), (4096, 4096), (5_000, 70_001), (PART - 3, 3)):
        piece = np.random.default_rng(offset).bytes(length)
        changed[offset : offset + length] = piece
        bench.tier.write([Transfer(slot, offset, memoryview(piece))])
        assert bench.read(slot, offset, length) == piece
    assert bench.read(slot) == changed
    assert [bench.read(int(slots.slots[at])) for at in (0, 2)] == [contents[0], contents[2]]


def test_a_generation_is_higher_each_time_a_slot_is_given_out(bench: Bench) -> None:
    seen: dict[int, int] = {}
    for _ in range(4):
        slots = bench.allocate(60)
        for slot, generation in zip(slots.slots.tolist(), slots.generations.tolist(), strict=True):
            assert generation > seen.get(slot, -1)
            seen[slot] = generation
        bench.tier.free(slots.slots)
        bench.tier.sync()


def test_a_full_tier_gives_fewer_slots_and_freed_ones_come_back(bench: Bench) -> None:
    slots = bench.allocate(1000, patience=0.5)
    assert 20 < len(slots.slots) < 1000
    assert not len(bench.tier.allocate(PART, CHUNKS, 1).slots)
    bench.tier.free(slots.slots[:5])
    bench.tier.sync()
    assert set(bench.allocate(5).slots.tolist()) == set(slots.slots[:5].tolist())


def test_a_slot_larger_than_a_segment_is_refused_with_the_setting_to_raise(bench: Bench) -> None:
    with pytest.raises(InvalidArgument, match="segment_bytes"):
        bench.tier.allocate(2 * MIB, 16, 1)


def test_recorded_slots_are_recovered_with_all_that_was_said_of_them(bench: Bench) -> None:
    slots = bench.allocate(12)
    contents = bench.write(slots, 1)
    told = entries(slots)
    bench.tier.record(told)
    bench.tier.sync()
    sums = bench.tier.checksums(slots.slots, range(1, 3))
    assert (sums == told.checksums.reshape(-1, CHUNKS)[:, 1:3]).all()
    found = bench.reopen()
    if not bench.tier.survives:
        assert not found
        assert bench.tier.stat().slots_used == 0
        return
    order = np.argsort(np.concatenate([batch.blocks for batch in found]))
    for field in fields(Entries):
        if field.name == "checksums":
            continue
        column = np.concatenate([getattr(batch, field.name) for batch in found])[order]
        assert (column == getattr(told, field.name)).all(), field.name
    sums = bench.tier.checksums(slots.slots, range(1, 3))
    assert (sums == told.checksums.reshape(-1, CHUNKS)[:, 1:3]).all()
    assert [bench.read(slot) for slot in slots.slots.tolist()] == contents
    assert bench.tier.stat().slots_used == 12


def test_what_was_not_recorded_or_was_freed_or_forgotten_is_not_recovered(bench: Bench) -> None:
    slots = bench.allocate(6)
    bench.write(slots, 1)
    bench.allocate(1)
    bench.tier.record(entries(slots))
    bench.tier.sync()
    bench.tier.free(slots.slots[:2])
    bench.tier.forget(slots.slots[2:3])
    bench.tier.sync()
    found = bench.reopen()
    if not bench.tier.survives:
        assert not found
        return
    assert sorted(np.concatenate([batch.blocks for batch in found]).tolist()) == [3, 4, 5]


def test_the_figures_add_up(bench: Bench) -> None:
    before = bench.tier.stat()
    slots = bench.allocate(7)
    stat = bench.tier.stat()
    assert stat.slots_used == before.slots_used + 7
    assert stat.used_bytes >= before.used_bytes + 7 * PART
    assert stat.used_bytes <= min(stat.backed_bytes, stat.capacity_bytes)
    assert stat.segments_ready <= stat.segments
    assert stat.trouble == ""
    bench.tier.free(slots.slots)
    bench.tier.sync()
    assert bench.tier.stat().slots_used == before.slots_used
