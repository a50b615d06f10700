"""The DRAM half of `kvstore bench tiers`: the block store as a library beside memcpy into the same kind of memory."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kvstore.cli.bench.ceilings import Bytes, memcpy_passes, prefaulted, shared_region
from kvstore.cli.bench.report import Row, interleave, row
from kvstore.core.checksum import chunking, part_seed, xxh3
from kvstore.core.keys import chain_keys, key_array
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.memfile import purge
from kvstore.tiers.store import BlockStore, ChainSlice, StoreConfig
from kvstore.tiers.tier import U64Array

BLOCK = 2 << 20
BATCH = 16  # blocks reserved, committed or leased in one call
_MASK = (1 << 64) - 1
_ALONE = ("numpy.copyto", "memmove")  # ways of one thread, as the store's caller is


class DramWorkload:
    """A store with room for ``count`` blocks, a chain of as many, and prefaulted buffers for one batch."""

    def __init__(self, store: BlockStore, count: int) -> None:
        self.store, self.count = store, count
        spec = NamespaceSpec(model="bench", block_tokens=16, block_bytes=BLOCK)
        self.cut = chunking(spec.parts[0])
        self.namespace = store.open_namespace(spec.canonical()).handle
        self.session = store.open_session(shared_memory=False, name="bench")
        self.keys = key_array(chain_keys(spec.root, range(16 * count), 16))
        self.seeds = [part_seed(key.tobytes(), 0) for key in self.keys]
        self.sources = [prefaulted(BLOCK) for _ in range(BATCH)]
        self.targets = [prefaulted(BLOCK) for _ in range(BATCH)]

    def put(self) -> float:
        """Bytes a second: reserve, copy and hash, commit. The store is emptied first, outside the measurement."""
        self.store.evict(self.namespace, self.keys[:1])
        return self._rate(self._put_batch)

    def get(self) -> float:
        """Bytes a second: lease, copy and verify, release."""
        return self._rate(self._get_batch)

    def _rate(self, batch: Callable[[int], None]) -> float:
        start = time.perf_counter()
        for first in range(0, self.count, BATCH):
            batch(first)
        return self.count * BLOCK / (time.perf_counter() - start)

    def _put_batch(self, first: int) -> None:
        keys = self.keys[first : first + BATCH]
        parent = self.keys[first - 1].tobytes() if first else b""
        held = self.store.reserve(self.session, self.namespace, ChainSlice(keys, parent, first))
        sums = np.empty((BATCH, self.cut.count), np.uint64)
        for at, offset in enumerate(held.offsets.tolist()):
            slot = np.frombuffer(self.store.dram.writable(offset, BLOCK), np.uint8)
            self._copy(slot, self.sources[at], self.seeds[first + at], sums[at], of_source=True)
        done = self.store.commit(self.session, held.id, sums.reshape(-1))
        if set(done) != {1}:
            raise RuntimeError(f"a put failed: outcomes {set(done)}")

    def _get_batch(self, first: int) -> None:
        got = self.store.acquire(self.session, self.namespace, self.keys[: first + BATCH], first)
        sums = got.checksums.reshape(-1, self.cut.count)
        found = np.empty(self.cut.count, np.uint64)
        for at, offset in enumerate(got.offsets.tolist()):
            slot = np.frombuffer(self.store.dram.readable(offset, BLOCK), np.uint8)
            self._copy(self.targets[at], slot, self.seeds[first + at], found, of_source=False)
            if not np.array_equal(found, sums[at]):
                raise RuntimeError("a get failed its checksums")
        self.store.release(self.session, [got.lease])

    def _copy(self, into: Bytes, source: Bytes, seed: int, sums: U64Array, of_source: bool) -> None:
        hashed = memoryview(source if of_source else into)
        for index in range(self.cut.count):
            start, end = self.cut.bounds(index)
            np.copyto(into[start:end], source[start:end])
            sums[index] = xxh3(hashed[start:end], (seed + index) & _MASK)


def _timed(run: Callable[[], int]) -> Callable[[], float]:
    """Bytes a second of a pass."""

    def measure() -> float:
        start = time.perf_counter()
        moved = run()
        return moved / (time.perf_counter() - start)

    return measure


@contextmanager
def opened(count: int) -> Iterator[DramWorkload]:
    """A store of its own on /dev/shm, gone at the end."""
    path = Path(f"/dev/shm/kvstore-bench-{uuid.uuid4().hex}.mem")
    config = StoreConfig(path, count * BLOCK * 5 // 4 + (64 << 20), max_sessions=8, segment_bytes=32 << 20)
    store = BlockStore(config)
    try:
        yield DramWorkload(store, count)
    finally:
        store.close()
        purge(path)


def run_dram(count: int, runs: int) -> list[Row]:
    """Puts and gets of 2 MiB blocks in batches of 16, by one thread."""
    path = Path(f"/dev/shm/kvstore-bench-{uuid.uuid4().hex}.region")
    try:
        with opened(count) as work:
            region = shared_region(str(path), count * BLOCK)
            ways = {
                kind: {way: run for way, run in memcpy_passes(region, buffers, to).items() if way in _ALONE}
                for kind, buffers, to in (("put", work.sources, True), ("get", work.targets, False))
            }
            work.put()
            measures = {"put": work.put, "get": work.get}
            for kind, passes in ways.items():
                measures |= {f"{kind} {way}": _timed(run) for way, run in passes.items()}
            found = interleave(measures, runs)
    finally:
        path.unlink(missing_ok=True)
    gb = {name: [value / 1e9 for value in values] for name, values in found.items()}
    params = {"blocks": count, "block_bytes": BLOCK, "batch": BATCH, "threads": 1}
    return [
        row(f"dram.{kind}.2MiB", "GB/s", gb[kind], ceilings={w: gb[f"{kind} {w}"] for w in ways[kind]}, params=params)
        for kind in ("put", "get")
    ]
