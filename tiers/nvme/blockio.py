"""Moving one block between host memory and a slot: body straight, tail and trailer through bounce memory."""

from __future__ import annotations

import numpy as np

from kvstore.core.checksum import Chunking, chunk_sums, part_seed
from kvstore.tiers.nvme.files import SegmentFiles
from kvstore.tiers.nvme.format import Trailer, pack_trailer, read_trailer, round_up, trailer_bytes
from kvstore.tiers.nvme.pool import Bounce, aligned
from kvstore.tiers.tier import GRANULE

STALE, TRAILER, CHECKSUM, IO = "stale", "trailer", "checksum", "io"  # why a read is a miss


def write_block(files: SegmentFiles, bounce: Bounce, source: memoryview, trailer: Trailer) -> None:
    """Writes the bytes of a part and its trailer in one call. ``source``: contiguous bytes."""
    tail_at = len(source) // GRANULE * GRANULE if aligned(source) else 0
    tail, rest = round_up(len(source) - tail_at), len(source) - tail_at
    memory = bounce.get(tail + trailer_bytes(len(trailer.sums)))
    memory[:rest] = source[tail_at:]
    memory[rest:tail] = bytes(tail - rest)
    pack_trailer(memory[tail:], trailer)
    files.write(trailer.slot, 0, [source[:tail_at], memory] if tail_at else [memory])


def read_block(files: SegmentFiles, bounce: Bounce, slot: int, chunks: int, into: memoryview) -> Trailer | None:
    """Fills ``into`` with a slot's bytes, unchecked, and gives its trailer; None when that is damaged."""
    tail_at = len(into) // GRANULE * GRANULE if aligned(into) else 0
    tail, rest = round_up(len(into) - tail_at), len(into) - tail_at
    memory = bounce.get(tail + trailer_bytes(chunks))
    files.read(slot, 0, [into[:tail_at], memory] if tail_at else [memory])
    into[tail_at:] = memory[:rest]
    return read_trailer(memory[tail:])


def write_trailer(files: SegmentFiles, bounce: Bounce, trailer: Trailer) -> None:
    """Writes the trailer of a slot whose bytes are there already."""
    memory = bounce.get(trailer_bytes(len(trailer.sums)))
    pack_trailer(memory, trailer)
    files.write(trailer.slot, round_up(trailer.length), [memory])


def load_trailer(files: SegmentFiles, bounce: Bounce, slot: int, length: int, chunks: int) -> Trailer | None:
    """The trailer of a slot that holds ``length`` bytes."""
    memory = bounce.get(trailer_bytes(chunks))
    files.read(slot, round_up(length), [memory])
    return read_trailer(memory)


def read_range(files: SegmentFiles, bounce: Bounce, slot: int, offset: int, into: memoryview) -> None:
    """Any byte range of a slot, unchecked."""
    if not (offset % GRANULE or len(into) % GRANULE) and aligned(into):
        files.read(slot, offset, [into])
        return
    start = offset // GRANULE * GRANULE
    memory = bounce.get(round_up(offset + len(into)) - start)
    files.read(slot, start, [memory])
    into[:] = memory[offset - start : offset - start + len(into)]


def write_range(files: SegmentFiles, bounce: Bounce, slot: int, offset: int, source: memoryview) -> None:
    """Any byte range of a slot; what shares a granule with its ends is read first and kept."""
    if not (offset % GRANULE or len(source) % GRANULE) and aligned(source):
        files.write(slot, offset, [source])
        return
    start, end = offset // GRANULE * GRANULE, round_up(offset + len(source))
    memory = bounce.get(end - start)
    files.read(slot, start, [memory[:GRANULE]])
    files.read(slot, end - GRANULE, [memory[-GRANULE:]])
    memory[offset - start : offset - start + len(source)] = source
    files.write(slot, start, [memory])


def bytes_hold(data: memoryview, trailer: Trailer) -> bool:
    """Whether the bytes are those that the trailer's checksums were made of."""
    cut = Chunking(trailer.length, trailer.chunk)
    if len(data) != trailer.length or cut.count != len(trailer.sums):
        return False
    sums = chunk_sums(data, part_seed(trailer.key, trailer.part), cut)
    return bool(np.array_equal(sums, trailer.sums))
