"""``kvstore bench index``: memory and pauses of the block index and its eviction policy at millions of entries."""

from __future__ import annotations

import argparse
import gc
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from kvstore.cli.bench.report import Report, Row, row
from kvstore.core.keys import KeyArray
from kvstore.tiers.eviction import POLICIES, make_policy
from kvstore.tiers.index import READY, BlockIndex

T = TypeVar("T")

ENTRIES = 5_000_000
CHAIN = 8192  # blocks of a chain: 131,072 tokens
PIECE = 256  # keys handled under the lock at once
REMEMBERED = 64  # chains asked for again
ROUNDS = 4000  # pieces put into the full index, each after room was made for it


class _Clock:
    """Wall and CPU times of every single operation, microseconds. Pauses of the machine show in the wall time only."""

    def __init__(self) -> None:
        self.wall: dict[str, array[float]] = defaultdict(lambda: array("f"))  # compact: they count as memory too
        self.cpu: dict[str, array[float]] = defaultdict(lambda: array("f"))

    def time(self, case: str, work: Callable[[], T]) -> T:
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        answer = work()
        self.wall[case].append((time.perf_counter_ns() - wall) / 1e3)
        self.cpu[case].append((time.thread_time_ns() - cpu) / 1e3)
        return answer


class _Load:
    """Chains of 8,192 blocks put in pieces of 256, old ones asked for again, evictions when the index is full."""

    def __init__(self, policy: str, entries: int, block_tokens: int) -> None:
        self.index = BlockIndex(entries)
        self.policy = make_policy(policy, self.index, lambda _: block_tokens)
        self.clock = _Clock()
        self.random = np.random.default_rng(0)
        self.chains: list[KeyArray] = []
        self.now = 0.0
        self.request = 0

    def pieces(self) -> Iterator[None]:
        """Puts chain after chain, a piece at each step."""
        while True:
            keys = self.random.integers(0, 2**64, (CHAIN, 2), np.uint64)
            self.request, self.now, parent = self.request + 1, self.now + 0.1, -1
            for first in range(0, CHAIN, PIECE):
                yield
                parent = self.clock.time("insert.256", partial(self.put, keys, parent, first))
            self.chains = [*self.chains[-REMEMBERED + 1 :], keys]

    def put(self, keys: KeyArray, parent: int, first: int) -> int:
        rows = self.index.insert_run(0, keys[first : first + PIECE], parent, first)
        self.index.add_parts(rows, 0)
        self.index.state[rows] = READY
        self.policy.inserted(rows, parent, self.request, 0, self.now)
        return int(rows[-1])

    def ask(self) -> None:
        """Matches one of the last chains, and touches what is there of it."""
        keys = self.chains[int(self.random.integers(len(self.chains)))]
        self.clock.time("find.256", lambda: self.index.find(0, keys[:PIECE]))
        rows = self.clock.time("match.8192", lambda: self.match(keys))
        self.request, self.now = self.request + 1, self.now + 0.1
        path = rows[: int((rows < 0).argmax())] if rows.min() < 0 else rows
        self.clock.time("touch.8192", lambda: self.policy.touched(path, self.request, self.now, CHAIN))

    def match(self, keys: KeyArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.concatenate([self.index.find(0, keys[at : at + PIECE]) for at in range(0, len(keys), PIECE)])

    def evict(self) -> None:
        """One block goes."""
        found = self.clock.time("victim", lambda: self.policy.victim(lambda row: not self.index.leases_at[row]))
        if found is None:
            raise RuntimeError("nothing could be evicted from an index without leases")
        self.clock.time("remove", lambda: self._remove(found))

    def _remove(self, row: int) -> None:
        self.policy.removed(row)
        self.index.remove(row)


def run(
    entries: int = ENTRIES, policies: Sequence[str] = tuple(POLICIES), block_tokens: int = 16, rounds: int = ROUNDS
) -> list[Row]:
    """Fills an index, then makes room and puts ``rounds`` times more, asking for old chains all the time."""
    rows: list[Row] = []
    for policy in policies:
        params = {"policy": policy, "entries": entries, "block_tokens": block_tokens}
        gc.collect()
        gc.freeze()
        before = _resident()
        load = _Load(policy, entries, block_tokens)
        _drive(load, rounds)
        grown = (_resident() - before) / len(load.index)
        claimed = (load.index.nbytes + load.policy.nbytes) / len(load.index)
        rows.append(row(f"{policy}.bytes_per_entry", "bytes", [grown], params={**params, "claimed": round(claimed, 1)}))
        for case, times in load.clock.wall.items():
            longest = round(max(load.clock.cpu[case]), 1)
            rows.append(row(f"{policy}.{case}", "us", times, params={**params, "longest_cpu_us": longest}))
        longest = max(map(max, load.clock.cpu.values()))
        rows.append(row(f"{policy}.longest_pause_cpu", "us", [longest], params=params))
        rows.append(row(f"{policy}.longest_pause", "us", [max(map(max, load.clock.wall.values()))], params=params))
        del load
    return rows


def _drive(load: _Load, rounds: int) -> None:
    pieces = load.pieces()
    next(pieces)
    while len(load.index) + PIECE <= load.index.max_blocks:
        next(pieces)
        if load.chains and load.random.random() < 0.05:
            load.ask()
    for _ in range(rounds):
        while len(load.index) + PIECE > load.index.max_blocks:
            load.evict()
        next(pieces)
        if load.random.random() < 0.2:
            load.ask()


def _resident() -> int:
    """Resident bytes of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of ``bench/index.py``."""
    parser = argparse.ArgumentParser(prog="bench.index", description=__doc__)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    rows = run(given.entries, given.policies.split(","), given.block_tokens, given.rounds)
    report = Report("index", rows=rows)
    print(report.to_json() if given.json else report.to_text())
