"""`kvstore bench tiers`: each tier beside what the device does without us, and the recovery of a large index.

The ceiling of nvme.* is a file of its own in the same directory, preallocated and written once before, moved by as
many threads as the tier has, from and into the same buffers, synced at the end of a write run as the tier's is.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvstore.cli.bench.report import Report, Row, interleave, row
from kvstore.cli.bench.tiers_dram import run_dram
from kvstore.core.checksum import chunk_sums, chunking, part_seed
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.index import BlockIndex
from kvstore.tiers.memopen import purge
from kvstore.tiers.nvme.directory import NvmeConfig
from kvstore.tiers.nvme.format import ENTRY, EntryArray, seal, stride_bytes
from kvstore.tiers.nvme.index import IndexProcess
from kvstore.tiers.nvme.recovery import runs as chain_runs
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.nvme.transfer import Want
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import GRANULE, Entries, Slots
from kvstore.tiers.values import StoreConfig

BLOCK = 2 << 20
RUNS = 5


class Workload:
    """``count`` blocks of 2 MiB in page-aligned memory, with keys and checksums as a store has them."""

    def __init__(self, count: int) -> None:
        self.spec = NamespaceSpec(model="bench", block_tokens=16, block_bytes=BLOCK)
        self.cut = chunking(self.spec.parts[0])
        self.count = count
        self.buffers = _buffers(count)
        self.targets = _buffers(count)
        pattern = np.random.default_rng(1).integers(0, 256, BLOCK, np.uint8)
        for index, buffer in enumerate(self.buffers):
            np.copyto(np.frombuffer(buffer, np.uint8), pattern)
            buffer[:8] = index.to_bytes(8, "little")
        for target in self.targets:
            target[:] = bytes(BLOCK)
        self.keys = [index.to_bytes(16, "big") for index in range(count)]
        self.sums = [chunk_sums(b, part_seed(k, 0), self.cut) for b, k in zip(self.buffers, self.keys, strict=True)]

    def entries(self, namespace: int, slots: Slots) -> Entries:
        """Their entries in these slots."""
        n = self.count
        keys = np.frombuffer(b"".join(self.keys), "<u8").reshape(-1, 2)
        return Entries(
            slots=slots.slots, generations=slots.generations, namespaces=np.full(n, namespace, np.uint16),
            parts=np.zeros(n, np.uint8), keys=keys, parents=np.zeros_like(keys), blocks=np.arange(n, dtype=np.uint32),
            lengths=np.full(n, BLOCK, np.uint64), importance=np.zeros(n, np.uint16), stamps=np.ones(n, np.uint32),
            chunks=np.full(n, self.cut.count, np.uint32), checksums=np.concatenate(self.sums),
        )  # fmt: skip


def _buffers(count: int) -> list[memoryview]:
    memory = memoryview(mmap.mmap(-1, count * BLOCK))
    return [memory[i * BLOCK : (i + 1) * BLOCK] for i in range(count)]


class Raw:
    """The disk without us: ``threads`` threads on one preallocated, once written file."""

    def __init__(self, path: Path, work: Workload, threads: int) -> None:
        self.work, self.threads = work, threads
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        os.posix_fallocate(self.fd, 0, work.count * BLOCK)
        self.write()

    def write(self) -> float:
        """Bytes a second, sync included."""
        start = time.perf_counter()
        self._all(os.pwritev, self.work.buffers)
        os.fdatasync(self.fd)
        return self.work.count * BLOCK / (time.perf_counter() - start)

    def read(self) -> float:
        """Bytes a second."""
        start = time.perf_counter()
        self._all(os.preadv, self.work.targets)
        return self.work.count * BLOCK / (time.perf_counter() - start)

    def _all(self, call: Callable[[int, list[memoryview], int], int], buffers: list[memoryview]) -> None:
        jobs, lock = iter(range(len(buffers))), threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    index = next(jobs, None)
                if index is None:
                    return
                call(self.fd, [buffers[index]], index * BLOCK)

        threads = [threading.Thread(target=work) for _ in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Ours:
    """The tier with the same blocks."""

    def __init__(self, path: Path, work: Workload) -> None:
        self.work = work
        self.tier = NvmeTier(NvmeConfig(path, 4 * work.count * BLOCK + (1 << 30), scrub_bytes=0))
        assert not list(self.tier.recover())
        self.namespace = self.tier.open_namespace(work.spec.canonical())
        for _ in range(4):  # every slot was written once, as in a tier that has filled up
            self.write()

    def write(self) -> float:
        """Bytes a second until every block is durable. Slots are allocated anew each time."""
        slots = self._allocate()
        start = time.perf_counter()
        ticket = self.tier.persist(self.work.entries(self.namespace, slots), self.work.buffers)
        ticket.wait_written()
        self.tier.sync()
        taken = time.perf_counter() - start
        if not ticket.durable:
            raise RuntimeError(f"a write failed: {ticket.reason}")
        self.slots, old = slots, getattr(self, "slots", None)
        if old is not None:
            self.tier.free(old.slots)
            self.tier.sync()
        return self.work.count * BLOCK / taken

    def read(self, window: int) -> float:
        """Bytes a second of a chain read in order, checked; ``window`` reads under way (0: the tier's default)."""
        start = time.perf_counter()
        for got in self.tier.fetch(self._wants(), window):
            if got.reason:
                raise RuntimeError(f"a read failed: {got.reason}")
        return self.work.count * BLOCK / (time.perf_counter() - start)

    def _wants(self) -> list[Want]:
        columns = zip(self.slots.slots.tolist(), self.slots.generations.tolist(), strict=True)
        blocks = zip(columns, self.work.keys, self.work.targets, strict=True)
        return [Want(slot, generation, self.namespace, 0, key, into) for (slot, generation), key, into in blocks]

    def _allocate(self) -> Slots:
        parts: list[Slots] = []
        while (missing := self.work.count - sum(len(part.slots) for part in parts)) > 0:
            parts.append(self.tier.allocate(BLOCK, self.work.cut.count, missing))
            time.sleep(0.001)
        return Slots(np.concatenate([p.slots for p in parts]), np.concatenate([p.generations for p in parts]))


def run_io(directory: Path, count: int = 128, runs: int = RUNS) -> list[Row]:
    """Writes, reads and chain reads of 2 MiB blocks."""
    work = Workload(count)
    raws = {f"{n} threads": Raw(directory / f"raw{n}", work, n) for n in (1, 4, 8)}
    ours = Ours(directory / "tier", work)
    try:
        found = interleave(
            {
                "write": ours.write,
                **{f"write {way}": raw.write for way, raw in raws.items()},
                "pipelined": lambda: ours.read(0),
                **{f"read {way}": raw.read for way, raw in raws.items()},
                "one_by_one": lambda: ours.read(1),
            },
            runs,
        )
    finally:
        ours.tier.close()
    gb = {name: [value / 1e9 for value in values] for name, values in found.items()}
    reads = {way: gb[f"read {way}"] for way in raws}
    params = {"blocks": count, "block_bytes": BLOCK, "directory": str(directory.resolve().anchor)}
    return [
        row("nvme.write.2MiB", "GB/s", gb["write"], ceilings={way: gb[f"write {way}"] for way in raws}, params=params),
        row("nvme.read.2MiB", "GB/s", gb["pipelined"], ceilings=reads, params=params),
        row("nvme.chain_read.pipelined", "GB/s", gb["pipelined"], ceilings=reads, params=params),
        row("nvme.chain_read.one_by_one", "GB/s", gb["one_by_one"], ceilings=reads, params=params),
    ]


# --- recovery ----------------------------------------------------------------------------------------------------

CHAIN = 128  # blocks a chain in the recovered index
SMALL = 64 << 10
SEGMENT = 256 << 20


def make_large_index(directory: Path, entries: int) -> NvmeConfig:
    """A tier of ``entries`` blocks of 64 KiB whose segment files are sparse, but for the block of the first hit."""
    work = SmallWorkload()
    slots_per_segment = SEGMENT // (work.granules * GRANULE)
    segments = -(-entries // slots_per_segment) + 1
    capacity = (segments + 1) * SEGMENT + (512 << 20)
    config = NvmeConfig(directory, capacity, bytes(16).hex(), segment_bytes=SEGMENT, scrub_bytes=0)
    with opened(config) as tier:
        number = tier.open_namespace(work.spec.canonical())
        slots = tier.allocate(SMALL, work.cut.count, 1)
        ticket = tier.persist(work.entries(number, slots), [work.data])
        tier.sync()
        if not ticket.durable:
            raise RuntimeError(f"a write failed: {ticket.reason}")
    real = int(slots.slots[0])  # in whichever segment the tier took first: that one stays
    for segment in set(range(segments)) - {real // (SEGMENT // GRANULE)}:
        with open(directory / f"segment-{segment:06d}.dat", "wb") as file:
            file.truncate(SEGMENT)
    lock = os.open(directory / "lock", os.O_RDWR)
    index = IndexProcess(directory / "index", lock)
    for start in range(1, entries, 100_000):
        packed = work.more(start, min(entries, start + 100_000), slots_per_segment)
        packed["slot"][packed["slot"] == real] = 0  # the slot that no other entry has: entry 0 is the real block
        index.commit(seal(packed).tobytes(), b"")
    index.close()
    os.close(lock)
    return config


class SmallWorkload:
    """The one real block of a large index, and entries for the others."""

    def __init__(self) -> None:
        self.spec = NamespaceSpec(model="bench", block_tokens=16, block_bytes=SMALL)
        self.cut = chunking(self.spec.parts[0])
        self.granules = stride_bytes(SMALL, self.cut.count) // GRANULE
        self.data = memoryview(mmap.mmap(-1, SMALL))
        self.key = (0).to_bytes(16, "little")

    def entries(self, namespace: int, slots: Slots) -> Entries:
        keys = np.zeros((1, 2), np.uint64)
        one = np.ones(1, np.uint32)
        return Entries(
            slots=slots.slots, generations=slots.generations, namespaces=one.astype(np.uint16) * namespace,
            parts=np.zeros(1, np.uint8), keys=keys, parents=np.ones((1, 2), np.uint64), blocks=one * 0,
            lengths=one.astype(np.uint64) * SMALL, importance=one.astype(np.uint16), stamps=one,
            chunks=one * self.cut.count, checksums=chunk_sums(self.data, part_seed(self.key, 0), self.cut),
        )  # fmt: skip

    def more(self, start: int, stop: int, slots_per_segment: int) -> EntryArray:
        """Packed entries ``start`` to ``stop``: chains of 128 blocks, in the order in which they were put."""
        at = np.arange(start, stop, dtype=np.uint64)
        segment, index = at // slots_per_segment, at % slots_per_segment
        packed: EntryArray = np.zeros(len(at), ENTRY)
        packed["slot"] = segment * (SEGMENT // GRANULE) + index * self.granules
        packed["generation"] = at + 1
        packed["key"] = _key_words(at)
        packed["parent"] = _key_words(at - np.uint64(1))
        packed["block"] = at % CHAIN
        packed["length"], packed["chunks"], packed["granules"] = SMALL, self.cut.count, self.granules
        return packed


def _key_words(number: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Keys as evenly spread as hashes are, (0, 0) for 0; shape (n, 2)."""
    low = number * np.uint64(0xBF58476D1CE4E5B9)
    low ^= low >> np.uint64(31)
    high = low * np.uint64(0x94D049BB133111EB)
    return np.stack([low, high ^ (high >> np.uint64(29))], axis=1)


def first_hit_of_store(config: NvmeConfig, entries: int) -> float:
    """The same through a whole store, as a node opens it after a restart that lost its memory file."""
    work = SmallWorkload()
    memory = Path(f"/dev/shm/kvstore-bench-{os.getpid()}.mem")
    settings = StoreConfig(
        memory, 64 << 20, nvme_dir=config.directory, nvme_capacity_bytes=config.capacity_bytes,
        nvme_segment_bytes=SEGMENT, nvme_scrub_bytes=0, scrub_bytes=0,
    )  # fmt: skip
    try:
        start = time.perf_counter()
        with BlockStore(settings) as store:
            handle, session = store.open_namespace(work.spec.canonical()).handle, store.open_session(False)
            keys = np.zeros((1, 2), np.uint64)
            found = store.acquire(session, handle, keys, deadline=time.monotonic() + 60.0)
            taken = time.perf_counter() - start
            blocks = store.stat().blocks
    finally:
        purge(memory)
    if found.blocks != 1 or blocks != entries:
        raise RuntimeError(f"recovered {blocks} of {entries} blocks, first read: {found.miss.name}")
    return taken


def first_hit(config: NvmeConfig, entries: int) -> float:
    """Seconds from nothing to the first block found by its key, read and checked, with all entries in an index."""
    work = SmallWorkload()
    start = time.perf_counter()
    with opened(config, recover=False) as tier:
        index = BlockIndex(entries + 1)
        slots = np.zeros(entries + 1, np.uint32)
        generations = np.zeros(entries + 1, np.uint32)
        for batch in tier.recover():
            rows = _insert(index, batch)
            slots[rows], generations[rows] = batch.slots, batch.generations
        row = index.find_one(0, work.key)
        want = Want(int(slots[row]), int(generations[row]), 0, 0, work.key, memoryview(bytearray(SMALL)))
        (got,) = tier.fetch([want])
        taken = time.perf_counter() - start
    if got.reason or len(index) != entries:
        raise RuntimeError(f"recovered {len(index)} of {entries} entries, first read: {got.reason or 'ok'}")
    return taken


def _insert(index: BlockIndex, batch: Entries) -> npt.NDArray[np.int64]:
    starts = chain_runs(batch)
    out = np.empty(len(batch), np.int64)
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(batch)], strict=True):
        parent = index.find_one(0, batch.parents[start].tobytes()) if batch.blocks[start] else -1
        out[start:stop] = index.insert_run(0, batch.keys[start:stop], parent, int(batch.blocks[start]))
    return out


@contextmanager
def opened(config: NvmeConfig, recover: bool = True) -> Iterator[NvmeTier]:
    """A tier, recovered, that is closed at the end."""
    tier = NvmeTier(config)
    try:
        if recover:
            for _ in tier.recover():
                pass
        yield tier
    finally:
        tier.close()


def run_recovery(directory: Path, entries: int = 1_000_000, runs: int = RUNS) -> list[Row]:
    """Recovery of an index of a million entries up to the first hit, of a whole store and of the tier alone."""
    config = make_large_index(directory / "large", entries)
    name = "recovery.1m_entries" if entries == 1_000_000 else f"recovery.{entries}_entries"
    found = interleave(
        {"": lambda: first_hit_of_store(config, entries), ".tier": lambda: first_hit(config, entries)}, runs
    )
    params = {"entries": entries, "target_s": 3.0}
    return [row(name + which, "s", taken, params=params) for which, taken in found.items()]


def run(directory: Path | None = None, count: int = 128, entries: int = 1_000_000, runs: int = RUNS) -> Report:
    """DRAM, NVMe and recovery. Works in a new directory below ``directory`` and removes it."""
    place = Path(tempfile.mkdtemp(prefix="kvstore-bench-", dir=directory or Path.cwd()))
    try:
        rows = run_dram(count, runs) + run_io(place, count, runs) + run_recovery(place, entries, runs)
        return Report("tiers", rows=rows)
    finally:
        shutil.rmtree(place)
