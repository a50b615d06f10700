"""Blocks for the tests of the NVMe tier: content that follows from a number, so that any process can check it."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvstore.core.checksum import chunk_sums, chunking, part_seed
from kvstore.core.keys import chain_keys
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.nvme.directory import NvmeConfig
from kvstore.tiers.nvme.ticket import Ticket
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.nvme.transfer import Fetched, Want
from kvstore.tiers.tier import Entries, Slots

MIB = 1 << 20


class Blocks:
    """One namespace with one part; block ``number`` has a key and bytes that follow from the number."""

    def __init__(self, block_bytes: int = 64 << 10, model: str = "test") -> None:
        self.spec = NamespaceSpec(model=model, block_tokens=16, block_bytes=block_bytes)
        self.cut = chunking(self.spec.parts[0])
        self.bytes = block_bytes

    def key(self, number: int) -> bytes:
        return chain_keys(self.spec.root, [number] * 16, 16)

    def content(self, number: int) -> memoryview:
        """The bytes of a block, page-aligned."""
        memory = memoryview(mmap.mmap(-1, self.bytes))
        rng = np.random.default_rng(number)
        memory[:] = rng.integers(0, 256, self.bytes, np.uint8).tobytes()
        return memory

    def entries(self, namespace: int, slots: Slots, numbers: Sequence[int], contents: Sequence[memoryview]) -> Entries:
        n, keys = len(numbers), [self.key(number) for number in numbers]
        sums = [chunk_sums(c, part_seed(k, 0), self.cut) for c, k in zip(contents, keys, strict=True)]
        packed = np.frombuffer(b"".join(keys), "<u8").reshape(-1, 2)
        return Entries(
            slots=slots.slots, generations=slots.generations, namespaces=np.full(n, namespace, np.uint16),
            parts=np.zeros(n, np.uint8), keys=packed, parents=np.zeros_like(packed),
            blocks=np.array(numbers, np.uint32), lengths=np.full(n, self.bytes, np.uint64),
            importance=np.full(n, 7, np.uint16), stamps=np.full(n, 1_000, np.uint32),
            chunks=np.full(n, self.cut.count, np.uint32), checksums=np.concatenate(sums),
        )  # fmt: skip

    def allocate(self, tier: NvmeTier, count: int, patience: float = 10.0) -> Slots:
        """``count`` slots; waits for segments that are being made."""
        parts: list[Slots] = []
        deadline = time.monotonic() + patience
        while (missing := count - sum(len(p.slots) for p in parts)) > 0 and time.monotonic() < deadline:
            parts.append(tier.allocate(self.bytes, self.cut.count, missing))
            if len(parts[-1].slots) < missing:
                time.sleep(0.005)
        return Slots(np.concatenate([p.slots for p in parts]), np.concatenate([p.generations for p in parts]))

    def put(self, tier: NvmeTier, numbers: Sequence[int]) -> tuple[Slots, Ticket]:
        """Persists blocks; the ticket may not be durable yet."""
        namespace = tier.open_namespace(self.spec.canonical())
        slots = self.allocate(tier, len(numbers))
        assert len(slots.slots) == len(numbers), f"{len(slots.slots)} of {len(numbers)} slots: {tier.stat()}"
        contents = [self.content(number) for number in numbers]
        return slots, tier.persist(self.entries(namespace, slots, numbers, contents), contents)

    def put_durably(self, tier: NvmeTier, numbers: Sequence[int]) -> Slots:
        slots, ticket = self.put(tier, numbers)
        assert ticket.wait_durable(30)
        assert ticket.durable, ticket.reason
        return slots

    def wants(self, tier: NvmeTier, slots: Slots, numbers: Sequence[int]) -> list[Want]:
        namespace = tier.open_namespace(self.spec.canonical())
        columns = zip(slots.slots.tolist(), slots.generations.tolist(), numbers, strict=True)
        return [
            Want(slot, generation, namespace, 0, self.key(number), memoryview(mmap.mmap(-1, self.bytes)))
            for slot, generation, number in columns
        ]

    def get(self, tier: NvmeTier, slots: Slots, numbers: Sequence[int]) -> list[str]:
        """Reasons of one read a block; bytes that pass are compared with what was put."""
        wants = self.wants(tier, slots, numbers)
        reasons = []
        for want, number, got in zip(wants, numbers, tier.fetch(wants), strict=True):
            reasons.append(got.reason)
            if not got.reason:
                assert want.into == self.content(number), f"block {number} came back with other bytes"
        return reasons


def config(directory: Path, capacity: int = 32 * MIB, **changes: object) -> NvmeConfig:
    """Small segments, quick commits and probes, no scrubber."""
    base = NvmeConfig(directory, capacity, "n1", segment_bytes=MIB, io_threads=3, commit_interval=0.02, scrub_bytes=0)
    return replace(base, **{"probe_interval": 0.05, **changes})  # type: ignore[arg-type]


@contextmanager
def opened(settings: NvmeConfig) -> Iterator[NvmeTier]:
    """A recovered tier."""
    tier = NvmeTier(settings)
    try:
        for _ in tier.recover():
            pass
        yield tier
    finally:
        tier.close()


def recovered(tier: NvmeTier) -> dict[bytes, tuple[int, int]]:
    """Slot and generation of each key that a fresh tier recovers."""
    found: dict[bytes, tuple[int, int]] = {}
    for batch in tier.recover():
        for key, slot, generation in zip(batch.keys, batch.slots.tolist(), batch.generations.tolist(), strict=True):
            found[key.tobytes()] = (slot, generation)
    return found


def until(condition: object, patience: float = 15.0) -> bool:
    """Waits until a callable is true."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


__all__ = ["MIB", "Blocks", "Fetched", "config", "opened", "recovered", "until"]
