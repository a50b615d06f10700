"""Who of several nodes serves which blocks of a chain. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_BYTES = 4 << 20  # that a further node is asked for


@dataclass(frozen=True, slots=True)
class Source:
    """A node that has the first ``blocks`` of a chain. ``near``: on this machine."""

    name: bytes
    blocks: int
    near: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """Blocks ``first`` to ``end``, and the nodes to ask for them, best first. One that has not got all of them serves
    those that it has, the next goes on."""

    first: int
    end: int
    names: tuple[bytes, ...]


def shares(first: int, end: int, block_bytes: int, sources: Sequence[Source]) -> list[Share]:
    """Cuts blocks ``first`` to ``end`` into consecutive shares, as many as are worth it, each from another node; as far
    as any node has them."""
    useful = sorted(
        (one for one in sources if one.blocks > first), key=lambda one: (-min(one.blocks, end), not one.near)
    )
    if not useful or first >= end:
        return []
    end = min(end, useful[0].blocks)
    count = max(1, min(len(useful), (end - first) * block_bytes // LEAST_BYTES))
    chosen = sorted(useful[:count], key=lambda one: one.blocks)  # who has least of the chain begins it
    found: list[Share] = []
    at = first
    for left, one in zip(range(count, 0, -1), chosen, strict=True):
        to = end if left == 1 else min(one.blocks, at + (end - at) // left)
        if to > at:
            others = [other.name for other in useful if other is not one and other.blocks > at]
            found.append(Share(at, to, (one.name, *others)))
            at = to
    return found
