"""What a call moves of each block: computed once for a namespace, its parts and a range, then only looped over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from kvstore.core.checksum import chunking
from kvstore.core.errors import MisalignedRange
from kvstore.core.namespace import PartSpec

STEP_BYTES = 256 << 10  # moved over a socket at once, and hashed while it is in the cache
COPY_BYTES = 1 << 20  # copied at once at least: so much glibc copies past the cache, at twice the speed

Chunk: TypeAlias = "tuple[int, int, int]"  # start and end byte in the piece, index of the chunk in its part
Step: TypeAlias = "tuple[int, int, tuple[Chunk, ...]]"  # start and end byte in the piece, the chunks in between


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes that move of one part: ``length`` bytes from ``offset`` on, whole chunks. ``sparse``: a block may be
    served without it (window and state groups). ``steps`` are for a socket, ``copies`` for memory."""

    part: int
    sparse: bool
    offset: int
    length: int
    chunks: tuple[Chunk, ...]
    steps: tuple[Step, ...]
    copies: tuple[Step, ...]


class Entry(NamedTuple):
    """One piece of one block in a batch. ``nth``: its place in the buffers; ``sums``: index of its first checksum."""

    nth: int
    block: int
    at: int
    sums: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The pieces of each block, in order. ``parts`` and the range are as they are sent (empty, 0 and 0: all)."""

    parts: tuple[int, ...]
    range_offset: int
    range_length: int
    pieces: tuple[Piece, ...]
    block_bytes: int
    block_chunks: int
    kept: list[list[Entry]] = field(default_factory=lambda: [[]], compare=False, repr=False)  # of the first blocks

    @property
    def sent_bytes(self) -> int:
        """Bytes of a block on a socket: its pieces and their checksums."""
        return self.block_bytes + 8 * self.block_chunks

    @property
    def whole(self) -> bool:
        return self.range_length == 0

    @property
    def sparse(self) -> bool:
        """A block may be served without some of its pieces."""
        return any(piece.sparse for piece in self.pieces)


def make_plan(specs: tuple[PartSpec, ...], parts: tuple[int, ...], span: tuple[int, int] | None) -> Plan:
    """``parts``: indexes into ``specs``, empty for all. ``span``: offset and length in each part, None for all.

    Raises MisalignedRange.
    """
    offset, length = span if span is not None else (0, 0)
    if span is not None and length <= 0:
        raise MisalignedRange(f"the range {offset}+{length} is empty")
    pieces = tuple(_piece(specs[part], part, offset, length) for part in parts or range(len(specs)))
    moved, chunks = sum(piece.length for piece in pieces), sum(len(piece.chunks) for piece in pieces)
    if all(piece.length == specs[piece.part].bytes for piece in pieces):
        offset = length = 0
    return Plan(parts, offset, length, pieces, moved, chunks)


def _piece(spec: PartSpec, part: int, offset: int, length: int) -> Piece:
    cut = chunking(spec)
    span = cut.span(offset, length)
    bounds = [cut.bounds(index) for index in span]
    chunks = tuple((start - offset, end - offset, index) for (start, end), index in zip(bounds, span, strict=True))
    return Piece(part, spec.kind != "prefix", offset, chunks[-1][1], chunks, _steps(chunks), _copies(chunks))


def _steps(chunks: tuple[Chunk, ...]) -> tuple[Step, ...]:
    """Whole chunks, STEP_BYTES at most unless a single one is larger."""
    steps: list[Step] = []
    group: list[Chunk] = []
    for chunk in chunks:
        if group and chunk[1] - group[0][0] > STEP_BYTES:
            steps.append((group[0][0], group[-1][1], tuple(group)))
            group = []
        group.append(chunk)
    steps.append((group[0][0], group[-1][1], tuple(group)))
    return tuple(steps)


def _copies(chunks: tuple[Chunk, ...]) -> tuple[Step, ...]:
    """Whole chunks, COPY_BYTES at least; a rest that is smaller goes with the step before it."""
    steps: list[Step] = []
    first, end = 0, chunks[-1][1]
    for nth, (_, stop, _) in enumerate(chunks, 1):
        start = chunks[first][0]
        if nth == len(chunks) or (stop - start >= COPY_BYTES and end - stop >= COPY_BYTES):
            steps.append((start, stop, chunks[first:nth]))
            first = nth
    return tuple(steps)
