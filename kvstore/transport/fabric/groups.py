"""Cutting a batch into transfers."""

from __future__ import annotations

from collections.abc import Sequence


def grouped(sizes: Sequence[int], most: int) -> list[range]:
    """Consecutive items in groups of at most ``most`` bytes; one that is larger goes alone."""
    groups: list[range] = []
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > most:
            groups.append(range(start, index))
            start, total = index, 0
        total += size
    if sizes:
        groups.append(range(start, len(sizes)))
    return groups
