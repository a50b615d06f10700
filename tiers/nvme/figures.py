"""Figures of the NVMe tier."""

from __future__ import annotations

from typing import NamedTuple


class NvmeStat(NamedTuple):
    """Figures beyond TierStat. ``backlog``: index changes not durable yet; ``bad_slots``: set aside by the disk."""

    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    scrubbed: int
    scrubbed_bytes: int
    failures: dict[str, int]
    backlog: int
    limbo: int
    bad_slots: int
    index_entries: int
    index_bytes: int
    index_restarts: int
    commits: int
    direct: bool
