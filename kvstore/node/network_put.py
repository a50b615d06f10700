"""Puts whose bytes come over the socket: received into the slots, hashed chunk by chunk while still in cache."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvstore.core.checksum import part_seed, xxh3
from kvstore.core.errors import InvalidArgument, WrongBlockSize
from kvstore.core.keys import KEY_BYTES
from kvstore.node.lane import Lane
from kvstore.node.layout import Layout

_MASK = (1 << 64) - 1
SlotView = Callable[[int, int], memoryview]  # (offset, length) -> writable view of the memory file
Sums = npt.NDArray[np.uint64]


@dataclass(slots=True)
class PendingPut:
    """A reservation of a network session that is being filled.

    ``keys``: those that got slots, concatenated. ``offsets``: of their parts, block-major. ``sums``: checksum of
    every chunk of every part, ``written`` which of them are there yet; shape (keys, chunks a block).
    ``lock`` is held while bytes are received, so that no other lane commits or aborts under the writer's hands.
    """

    keys: bytes
    layout: Layout
    offsets: list[int]
    sums: Sums = field(init=False)
    written: npt.NDArray[np.bool_] = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        shape = (len(self.keys) // KEY_BYTES, self.layout.block_chunks)
        self.sums = np.zeros(shape, dtype=np.uint64)
        self.written = np.zeros(shape, dtype=np.bool_)

    def columns(self, ranged: Layout) -> npt.NDArray[np.intp]:
        """Which columns of ``sums`` the chunks of a range are."""
        first, columns = 0, []
        for cut, span in zip(self.layout.cuts, ranged.spans, strict=True):
            columns.append(np.arange(first + span.start, first + span.stop))
            first += cut.count
        return np.concatenate(columns)


def check_payload(got: int, blocks: int, layout: Layout, what: str) -> None:
    """Raises WrongBlockSize unless the payload is the data of so many blocks and its checksum tail."""
    want = blocks * (layout.block_bytes + 8 * layout.block_chunks)
    if got != want:
        raise WrongBlockSize(
            f"{what} of {blocks} blocks needs a payload of {want} bytes ({layout.block_bytes} a block in "
            f"{len(layout.parts)} part(s), and 8 a chunk), not {got}",
            got=got,
            want=want,
        )


def receive(
    lane: Lane, slots: SlotView, layout: Layout, keys: bytes, offsets: list[int], taken: list[bool]
) -> tuple[Sums, npt.NDArray[np.bool_]]:
    """Receives the payload of ``len(taken)`` blocks: those taken into their slots, the others are dropped.

    ``keys`` and ``offsets`` are of the taken blocks only. Returns the checksums computed, shape (taken, chunks a
    block), and for each of these blocks whether they equal the sender's.
    """
    block_of = iter(range(len(keys) // KEY_BYTES))
    sums = np.empty((len(keys) // KEY_BYTES, layout.block_chunks), dtype=np.uint64)
    for wanted in taken:
        if wanted:
            at = next(block_of)
            width = len(layout.parts)
            key = keys[at * KEY_BYTES : (at + 1) * KEY_BYTES]
            sums[at] = _receive_block(lane, slots, layout, key, offsets[at * width : (at + 1) * width])
        else:
            lane.discard(layout.block_bytes)
    return sums, _tail(lane, len(taken), layout)[np.array(taken, dtype=np.bool_)] == sums


def _receive_block(lane: Lane, slots: SlotView, layout: Layout, key: bytes, offsets: list[int]) -> list[int]:
    sums: list[int] = []
    for position, offset in enumerate(offsets):
        start, end = layout.bounds(position)
        seed = part_seed(key, layout.parts[position])
        chunk = layout.cuts[position].chunk
        view = slots(offset + start, end - start)
        for index in layout.spans[position]:
            piece = view[index * chunk - start : (index + 1) * chunk - start]
            lane.read_exact(piece)
            sums.append(xxh3(piece, (seed + index) & _MASK))
    return sums


def _tail(lane: Lane, blocks: int, layout: Layout) -> Sums:
    raw = bytearray(8 * blocks * layout.block_chunks)
    lane.read_exact(memoryview(raw))
    return np.frombuffer(raw, dtype="<u8").reshape(blocks, layout.block_chunks)


def check_complete(put: PendingPut) -> None:
    """Raises InvalidArgument when bytes of the reservation were never written."""
    missing = int(put.written.size - put.written.sum())
    if missing:
        raise InvalidArgument(
            f"{missing} of {put.written.size} chunks of this reservation were not written; write them, or abort",
            field="reservation",
            missing=missing,
        )
