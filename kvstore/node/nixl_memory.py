"""What a node does with NIXL: its memory file, registered read-only for clients to read, and reads of clients' buffers.

Nobody remote writes a slot: a put's bytes are read into the transport's own memory, hashed there, and copied.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from kvstore.core.checksum import part_seed, xxh3
from kvstore.core.errors import InvalidArgument, Unavailable
from kvstore.core.keys import KEY_BYTES
from kvstore.node.layout import Layout
from kvstore.node.network_put import PendingPut
from kvstore.tiers.store import BlockStore
from kvstore.transport.fabric.groups import grouped
from kvstore.transport.fabric.shared import open_fabric
from kvstore.transport.mapping import MemoryMap

_log = logging.getLogger(__name__)
_MASK = (1 << 64) - 1
_READ_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """One chunk of a put: where the client has it, where in the memory file it goes, and its place among the sums."""

    source: int
    target: int
    length: int
    seed: int
    block: int
    column: int


class NixlMemory:
    """Opening it takes half a second. Raises Unsupported, Unavailable."""

    def __init__(self, store: BlockStore, devices: str) -> None:
        self._store = store
        self._fabric = open_fabric("node", devices, progress=True)
        self._memory, registration = self._registered()
        self.metadata = self._fabric.agent.metadata(registration)
        self.address = int(self._memory.array.__array_interface__["data"][0])
        self.size = self._memory.size

    def _registered(self) -> tuple[MemoryMap, object]:
        """The memory file as clients read it. RDMA devices of today's UCX want memory that they may also write."""
        size = self._store.shared_memory().bytes
        for writable in (False, True):
            descriptor = self._store.open_writer() if writable else self._store.open_reader()
            try:
                memory = MemoryMap(descriptor, size, writable)
            finally:
                os.close(descriptor)
            address = int(memory.array.__array_interface__["data"][0])
            data = self._store.shared_memory().data_offset
            try:
                registration = self._fabric.agent.register(address + data, size - data)
            except Unavailable:
                if writable:
                    raise
                _log.info("the memory file cannot be registered read-only; registering it writable")
                continue
            return memory, registration
        raise AssertionError("unreachable")

    # --- peers -------------------------------------------------------------------------------------------

    def add_peer(self, metadata: bytes) -> str:
        """A client by what it sent. Raises Unavailable."""
        return self._fabric.agent.add_peer(metadata)

    def remove_peer(self, name: str) -> None:
        self._fabric.agent.remove_peer(name)

    # --- reads and writes ----------------------------------------------------------------------------------

    def ready(self, offsets: list[int], lengths: list[int]) -> None:
        """Sets up the page tables of slots that a client reads for the first time."""
        for nth, offset in enumerate(offsets):
            self._memory.part(offset, lengths[nth % len(lengths)])

    def receive(
        self, peer: str, put: PendingPut, ranged: Layout, first: int, addresses: list[int], deadline: float,
        alive: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Reads a range of blocks ``first`` on of a reservation from the client's memory into their slots."""
        width = len(ranged.parts)
        if not addresses or len(addresses) % width or first + len(addresses) // width > len(put.sums):
            raise InvalidArgument(
                f"WRITE names {len(addresses)} addresses from block {first} on; the reservation has {len(put.sums)} "
                f"blocks of {width} part(s)",
                field="addresses",
            )
        places = list(_places(put, ranged, first, addresses))
        for group in grouped([place.length for place in places], _READ_BYTES):
            self._receive_group(peer, put, places[group.start : group.stop], deadline, alive)

    def _receive_group(
        self, peer: str, put: PendingPut, places: list[Place], deadline: float, alive: Callable[[], bool]
    ) -> None:
        slab = self._fabric.pull(peer, list(joined(places)), deadline, alive)
        try:
            at = 0
            for place in places:
                view = memoryview(slab.array)[at : at + place.length]
                slot = self._store.dram.writable(place.target, place.length)
                np.copyto(np.frombuffer(slot, np.uint8), slab.array[at : at + place.length])
                put.sums[place.block, place.column] = xxh3(view, place.seed)
                put.written[place.block, place.column] = True
                at += place.length
        finally:
            slab.give_back()


def _places(put: PendingPut, ranged: Layout, first: int, addresses: list[int]) -> Iterator[Place]:
    width, columns = len(ranged.parts), put.columns(ranged)
    for nth, address in enumerate(addresses):
        block, position = first + nth // width, nth % width
        key = put.keys[block * KEY_BYTES : (block + 1) * KEY_BYTES]
        seed, start = part_seed(key, ranged.parts[position]), ranged.bounds(position)[0]
        offset = put.offsets[block * width + position]
        column = sum(len(span) for span in ranged.spans[:position])
        for at, index in enumerate(ranged.spans[position]):
            low, high = ranged.cuts[position].bounds(index)
            yield Place(
                address + low - start, offset + low, high - low, (seed + index) & _MASK, block,
                int(columns[column + at]),
            )  # fmt: skip


def joined(places: list[Place]) -> Iterator[tuple[int, int]]:
    """Address and length of what is to be read: chunks that follow one another are one transfer."""
    start, end = places[0].source, places[0].source
    for place in places:
        if place.source != end:
            yield start, end - start
            start = end = place.source
        end += place.length
    yield start, end - start
