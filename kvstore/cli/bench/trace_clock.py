"""A node whose eviction policy and write budget live by a trace's clock: for replays, which are faster or slower.

    python -m kvstore.cli.bench.trace_clock FILE node --config ...

FILE holds one float64, seconds of the trace, which the replaying process sets before each request. Everything else of
the node (threads, deadlines, commits) keeps the machine's clock.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path
from typing import Any

from kvstore.tiers import movement
from kvstore.tiers.admission import Admission
from kvstore.tiers.columns import IntArray
from kvstore.tiers.eviction import POLICIES, EvictionPolicy

_SECONDS = struct.Struct("<d")


class TraceClock:
    """Seconds of the trace, in a file that two processes map."""

    def __init__(self, path: Path, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def set(self, seconds: float) -> None:
        """The trace is here now."""
        _SECONDS.pack_into(self._memory, 0, seconds)

    def now(self) -> float:
        """Where the trace is."""
        seconds: float = _SECONDS.unpack_from(self._memory)[0]
        return seconds


def on_clock(policy: type[EvictionPolicy], clock: TraceClock) -> type[EvictionPolicy]:
    """The same policy, told the trace's time."""

    class OnClock(policy):  # type: ignore[misc, valid-type]
        name = policy.name

        def inserted(self, rows: IntArray, parent_row: int, request: int, appended_tokens: int, now: float) -> None:
            super().inserted(rows, parent_row, request, appended_tokens, clock.now())

        def touched(self, path: IntArray, request: int, now: float, chain_blocks: int) -> None:
            super().touched(path, request, clock.now(), chain_blocks)

    return OnClock


def budget_on_clock(clock: TraceClock) -> type[Admission]:
    """The same admission, its budget by the trace's time."""

    class OnClock(Admission):
        def __init__(self, base: float, budget: float, now: float) -> None:
            super().__init__(base, budget, clock.now())

        def refuses(self, score: float, size: int, now: float) -> str:
            return super().refuses(score, size, clock.now())

        def wrote(self, size: int, now: float) -> None:
            super().wrote(size, clock.now())

    return OnClock


def install(clock: TraceClock) -> None:
    """Every store that this process opens from now on keeps the trace's time."""
    POLICIES.update({name: on_clock(policy, clock) for name, policy in POLICIES.items()})
    module: Any = movement
    module.Admission = budget_on_clock(clock)


def main() -> int:
    from kvstore.cli.app import run

    install(TraceClock(Path(sys.argv[1])))
    return run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
