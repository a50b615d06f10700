"""Checksums: one xxh3-64 a chunk, seeded by key, part and chunk index.

The seed makes a chunk that was written to the wrong place fail its check, not only one that was damaged.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from kvstore.core.errors import MisalignedRange
from kvstore.core.namespace import PartSpec

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: spreads small integers over 64 bits
MIN_CHUNK = 64 << 10
MAX_CHUNK = 256 << 10
xxh3 = xxhash.xxh3_64_intdigest


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a part of ``length`` bytes is cut: chunks of ``chunk`` bytes, the last may be shorter."""

    length: int
    chunk: int

    @property
    def count(self) -> int:
        return -(-self.length // self.chunk)

    def span(self, offset: int, length: int) -> range:
        """Chunk indexes of a byte range (0, 0: all). Raises MisalignedRange."""
        if offset == 0 and length == 0:
            return range(self.count)
        end = offset + length
        if (
            offset < 0
            or length <= 0
            or end > self.length
            or offset % self.chunk
            or (end % self.chunk and end != self.length)
        ):
            raise MisalignedRange(
                f"range {offset}+{length} of a part of {self.length} bytes does not start and end on its "
                f"{self.chunk}-byte chunks",
                chunk=self.chunk,
            )
        return range(offset // self.chunk, -(-end // self.chunk))

    def bounds(self, index: int) -> tuple[int, int]:
        """Start and end byte of a chunk in its part."""
        return index * self.chunk, min((index + 1) * self.chunk, self.length)


def chunking(part: PartSpec) -> Chunking:
    """A layer a chunk when the part declares layers; else 1/16 of the part within 64 to 256 KiB, 4 KiB-aligned."""
    if part.layers is not None:
        return Chunking(part.bytes, part.bytes // part.layers)
    wanted = -(-part.bytes // 16)
    chunk = min(MAX_CHUNK, max(MIN_CHUNK, -(-wanted // 4096) * 4096))
    return Chunking(part.bytes, chunk)


def part_seed(key: bytes, part: int) -> int:
    """Seed of chunk 0 of a part; chunk i has ``(seed + i) mod 2**64``."""
    low, high = struct.unpack("<QQ", key)
    return int((low ^ ((high * _GOLDEN) & _MASK)) + ((part * _GOLDEN) & _MASK) & _MASK)


def chunk_sums(data: memoryview, seed: int, cut: Chunking, first_chunk: int = 0) -> npt.NDArray[np.uint64]:
    """Checksums of consecutive chunks; ``data`` starts at chunk ``first_chunk`` and ends on a chunk boundary."""
    count = -(-len(data) // cut.chunk)
    return np.array(
        [xxh3(data[i * cut.chunk : (i + 1) * cut.chunk], seed + first_chunk + i & _MASK) for i in range(count)],
        dtype=np.uint64,
    )
