"""How the bytes of a request are laid out: which parts of a namespace, cut into which chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstore.core.checksum import Chunking, chunking
from kvstore.core.errors import InvalidArgument
from kvstore.core.namespace import NamespaceSpec

_KEPT = 4096  # layouts


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts asked for, in order. Payloads are block-major: all parts of a block, then the next block.

    ``spans`` are the chunk indexes of the byte range in each part; ``block_bytes`` and ``block_chunks`` count what
    one block contributes within that range.
    """

    parts: tuple[int, ...]
    cuts: tuple[Chunking, ...]
    spans: tuple[range, ...]
    block_bytes: int
    block_chunks: int

    def bounds(self, position: int) -> tuple[int, int]:
        """Start and end byte of the range within the part at ``position``."""
        span, cut = self.spans[position], self.cuts[position]
        return cut.bounds(span[0])[0], cut.bounds(span[-1])[1]

    def ranged(self, offset: int, length: int) -> Layout:
        """The same parts cut to a byte range. Raises MisalignedRange."""
        return _cut(self.parts, self.cuts, offset, length)


class Layouts:
    """Layouts by namespace handle, kept: requests of one engine ask for the same parts again and again.

    Handles are never given twice, so what is kept for a dropped namespace is merely not asked for any more (the store
    refuses its handle).
    """

    def __init__(self, spec: Callable[[int], NamespaceSpec]) -> None:
        """``spec`` gives the spec of a handle, or raises UnknownNamespace."""
        self._spec = spec
        self._kept: dict[tuple[int, tuple[int, ...], int, int], Layout] = {}

    def get(self, handle: int, parts: Sequence[int], offset: int = 0, length: int = 0) -> Layout:
        """Raises UnknownNamespace, InvalidArgument or MisalignedRange."""
        key = (handle, tuple(parts) if parts else (), offset, length)
        found = self._kept.get(key)
        if found is None:
            found = layout_of(self._spec(handle), parts, offset, length)
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = found
        return found


def layout_of(spec: NamespaceSpec, parts: Sequence[int], offset: int = 0, length: int = 0) -> Layout:
    """The layout of ``parts`` (empty: all), each cut to the byte range. Raises InvalidArgument or MisalignedRange."""
    chosen = _checked_parts(spec, parts)
    return _cut(chosen, tuple(chunking(spec.parts[part]) for part in chosen), offset, length)


def _cut(parts: tuple[int, ...], cuts: tuple[Chunking, ...], offset: int, length: int) -> Layout:
    spans = tuple(cut.span(offset, length) for cut in cuts)
    size = sum(cut.bounds(span[-1])[1] - cut.bounds(span[0])[0] for cut, span in zip(cuts, spans, strict=True))
    return Layout(parts, cuts, spans, size, sum(map(len, spans)))


def _checked_parts(spec: NamespaceSpec, parts: Sequence[int]) -> tuple[int, ...]:
    if not parts:
        return tuple(range(len(spec.parts)))
    chosen = tuple(parts)
    for part in chosen:
        if part >= len(spec.parts):
            raise InvalidArgument(
                f"part {part} does not exist: the namespace has parts 0 to {len(spec.parts) - 1}",
                field="parts",
                got=part,
            )
    if len(set(chosen)) != len(chosen):
        raise InvalidArgument(f"parts {list(chosen)} name one part twice", field="parts")
    return chosen
