"""Between parts in staging memory and pages of the engine, for one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .descriptor import OwnPart
from .planner import LoadRun, SaveRun

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Span:
    """Consecutive blocks whose pages of several groups move together. ``pages[group]``: ids, block-major."""

    first: int
    count: int
    pages: dict[int, Sequence[int]]

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(self.pages)


def spans_of_loads(runs: Sequence[LoadRun]) -> list[Span]:
    """Groups that load the same blocks together, so that one call fetches all their parts."""
    by_range: dict[tuple[int, int], dict[int, Sequence[int]]] = {}
    for run in runs:
        by_range.setdefault((run.first, run.count), {})[run.group] = run.pages
    return [Span(first, count, pages) for (first, count), pages in sorted(by_range.items())]


def span_of_save(run: SaveRun) -> Span:
    return Span(run.first, run.count, dict(zip(run.groups, run.pages, strict=True)))


class Mover:
    """``pages``: HostPages or DevicePages. ``per_block[group]``: pages of a block."""

    def __init__(self, pages: Any, own: Sequence[OwnPart], per_block: dict[int, int]) -> None:
        self._pages = pages
        self._own = tuple(own)
        self._per = per_block
        self._bytes = {p.id: pages.page_bytes(p.group) * per_block[p.group] // p.slices for p in self._own}

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all parts of this rank."""
        return sum(self._bytes.values())

    def parts(self, groups: Sequence[int]) -> tuple[OwnPart, ...]:
        """This rank's parts of these groups, in namespace order."""
        return tuple(part for part in self._own if part.group in groups)

    def bytes_of(self, groups: Sequence[int]) -> int:
        return sum(self._bytes[part.id] for part in self.parts(groups))

    def batches(self, span: Span, piece_bytes: int) -> list[Span]:
        """The span in pieces that fit."""
        size = max(1, piece_bytes // max(1, self.bytes_of(span.groups)))
        return [self._cut(span, at, min(size, span.count - at)) for at in range(0, span.count, size)]

    def _cut(self, span: Span, at: int, count: int) -> Span:
        pages = {g: ids[at * self._per[g] : (at + count) * self._per[g]] for g, ids in span.pages.items()}
        return Span(span.first + at, count, pages)

    def arrays(self, span: Span, piece: Bytes) -> list[Bytes]:
        """For each part of the span's groups an array of shape (count, bytes of the part), in the piece."""
        out, at = [], 0
        for part in self.parts(span.groups):
            size = self._bytes[part.id]
            out.append(piece[at : at + size * span.count].reshape(span.count, size))
            at += size * span.count
        return out

    def buffers(self, span: Span, piece: Bytes) -> list[memoryview]:
        """One buffer a block and part, block-major: what the SDK takes."""
        arrays = self.arrays(span, piece)
        return [memoryview(array[index]) for index in range(span.count) for array in arrays]

    def pack(self, span: Span, piece: Bytes) -> Any:
        """Pages to staging. Returns a fence to wait for, or None when it is done."""
        return self._pages_move(self._pages.gather, span, span.count, piece)

    def unpack(self, span: Span, count: int, piece: Bytes) -> Any:
        """The first ``count`` blocks from staging to pages."""
        return self._pages_move(self._pages.scatter, span, count, piece)

    def _pages_move(self, move: Any, span: Span, count: int, piece: Bytes) -> Any:
        fence = None
        for part, array in zip(self.parts(span.groups), self.arrays(span, piece), strict=True):
            per = self._per[part.group]
            rows = array[:count].reshape(count * per, -1)
            fence = move(part.group, (part.slice, part.slices), span.pages[part.group][: count * per], rows) or fence
        return fence
