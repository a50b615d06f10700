"""``kvstore bench replay``: a trace through a real node with two tiers: hits by tier, bytes written.

The node is a process of its own, its NVMe tier on a real disk. One block of the trace (512 tokens) is one small block
here, so that capacities are those of the trace in blocks, exactly: ballast takes every slot that is too many. Puts
wait until what they push out of DRAM has been written, so that nothing hangs on how fast the machine is;
the eviction policy and the write budget live by the trace's clock (``trace_clock``).
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from kvstore import Client, Keys, Namespace, NamespaceSpec
from kvstore.cli.bench.node import OwnNode
from kvstore.cli.bench.report import Report, Row, row
from kvstore.cli.bench.trace import BLOCK_TOKENS, Request, load_trace
from kvstore.cli.bench.trace_clock import TraceClock
from kvstore.client.writer import Writer
from kvstore.core.errors import ConfigError, InternalError

MIB = 1 << 20
DRAM_SEGMENT, NVME_SEGMENT = MIB, 16 * MIB
PATIENCE = 120.0  # seconds that one call may take; nothing is measured with it
_PIECE = 256

Progress = Callable[[str, int, int], object]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to run the node. ``budget``: blocks a second of the trace that may be written, 0: no bound.
    ``simulated``: hits that a simulation of the same rules finds at 3,000 + 15,000 blocks."""

    name: str
    policy: str
    rule: str = "clean"
    admission: float = 0.0
    budget: float = 0.0
    simulated: float | None = None


CASES = (
    Case("lru.clean", "lru", simulated=0.277),
    Case("lru.score_0.5", "lru", admission=0.5, simulated=0.237),
    Case("lru.through", "lru", rule="through"),
    Case("turnscore.clean", "turnscore"),
    Case("turnscore.budget", "turnscore", budget=20.0),
)


def chosen(patterns: tuple[str, ...]) -> tuple[Case, ...]:
    """The cases whose names fit any of the patterns; all without one. Raises ConfigError."""
    found = tuple(c for c in CASES if not patterns or any(fnmatchcase(c.name, pattern) for pattern in patterns))
    if not found:
        names = ", ".join(case.name for case in CASES)
        raise ConfigError(f"no case fits {', '.join(patterns)}; there are: {names}")
    return found


@dataclass(frozen=True, slots=True)
class Size:
    """Capacities in blocks, and what one block of the trace is scaled to."""

    dram: int = 3000
    nvme: int = 15_000
    block_bytes: int = 4096

    @property
    def nvme_slot(self) -> int:
        """Bytes a block takes on NVMe: with its trailer."""
        return -(-self.block_bytes // 4096) * 4096 + 4096

    @property
    def nvme_segments(self) -> int:
        return max(2, -(-(self.nvme + 1) * self.nvme_slot // NVME_SEGMENT))

    @property
    def nvme_ballast(self) -> int:
        """NVMe slots that are too many."""
        return self.nvme_segments * (NVME_SEGMENT // self.nvme_slot) - self.nvme

    @property
    def dram_bytes(self) -> int:
        """Memory that holds the blocks, the ballast, headers, tables and a segment or two."""
        return int((self.dram + self.nvme_ballast) * self.block_bytes * 1.125) + 16 * MIB


@dataclass
class Found:
    """What a replay came to."""

    blocks: int = 0
    hits: int = 0
    nvme_hits: int = 0
    stored: int = 0
    written: int = 0
    disk_bytes: int = 0
    requests: int = 0
    seconds: float = 0.0

    def metrics(self, size: Size) -> dict[str, tuple[float, str]]:
        """By name: value and unit."""
        blocks, requests = max(self.blocks, 1), max(self.requests, 1)
        return {
            "hits": (self.hits / blocks, "ratio"),
            "dram_hits": ((self.hits - self.nvme_hits) / blocks, "ratio"),
            "nvme_hits": (self.nvme_hits / blocks, "ratio"),
            "written_blocks_per_request": (self.written / requests, "ratio"),
            "written_bytes": (self.written * size.block_bytes, "bytes"),
            "disk_bytes": (self.disk_bytes, "bytes"),
        }


class Replay:
    """One client that serves a trace's requests one after another."""

    def __init__(self, client: Client, case: Case, size: Size, clock: TraceClock) -> None:
        self.client, self.case, self.size, self.clock = client, case, size, clock
        spec = NamespaceSpec(model="trace", block_tokens=BLOCK_TOKENS, block_bytes=size.block_bytes)
        self.ns: Namespace = client.namespace(spec)
        self.into = np.zeros((0, size.block_bytes), np.uint8)
        self.found = Found()

    def run(self, trace: list[Request], total: int, progress: Progress) -> Found:
        """Serves all requests. ``total``: block references that the hits are a share of."""
        before, begun, self.moves = self._counters(), time.monotonic(), self._moves()
        for number, request in enumerate(trace, 1):
            self.clock.set(request.seconds)
            self._serve(number, request)
            if number % 200 == 0:
                progress(self.case.name, number, len(trace))
        did = self._counters()
        did.subtract(before)
        found = self.found
        found.blocks, found.requests, found.seconds = total, len(trace), time.monotonic() - begun
        found.nvme_hits, found.written = did["nvme_hit_blocks"], did["written_blocks"]
        found.disk_bytes = did["written_bytes.nvme"]
        return found

    def _serve(self, number: int, request: Request) -> None:
        keys = self.ns.keys_from_hashes(int(block).to_bytes(8, "little") for block in request.keys[:, 1].tolist())
        if not len(keys):
            return
        got = self._get(keys, number)
        self.found.hits += got
        if got == len(keys):
            return
        done = self.ns.put(keys, contents(keys[got:], self.size), first=got, request_id=number, timeout=PATIENCE)
        if not done.complete:
            raise InternalError(f"request {number}: a put of {len(keys) - got} blocks ended as {done}")
        self.found.stored += done.stored
        if self.case.rule == "through":  # a copy of each block is on its way, and nobody waits for it
            self.moves += done.stored
            self._settle(self.moves)

    def _get(self, keys: Keys, number: int) -> int:
        if len(self.into) < len(keys):
            self.into = np.zeros((len(keys), self.size.block_bytes), np.uint8)
        into = self.into[: len(keys)]
        got = self.ns.get(keys, list(into), request_id=number, timeout=PATIENCE)
        if got and not np.array_equal(into[:got], contents(keys[:got], self.size)):
            raise InternalError(f"request {number}: blocks came back with other bytes")
        return got

    def _settle(self, moves: int) -> None:
        """Waits until so many copies to NVMe have ended."""
        end = time.monotonic() + PATIENCE
        while self._moves() < moves:
            if time.monotonic() > end:
                raise InternalError(f"{moves - self._moves()} writes to NVMe did not end in {PATIENCE:.0f} s")
            time.sleep(0.02)

    def _moves(self) -> int:
        counters = self.client.stat(timeout=PATIENCE).tiers[1].counters
        return sum(count for name, count in counters.items() if name.startswith("moves_demotion_"))

    def _counters(self) -> Counter[str]:
        stat = self.client.stat(timeout=PATIENCE)
        found = Counter(dict(stat.counters))
        found["written_bytes.nvme"] = stat.tiers[1].counters["written_bytes"]
        return found


def contents(keys: Keys, size: Size) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Bytes of blocks, shape (n, block_bytes): each its key, over and over."""
    raw = np.frombuffer(keys.raw, np.uint8).reshape(len(keys), 16)
    return np.tile(raw, (1, size.block_bytes // 16))


class Ballast:
    """Takes every slot but ``size.dram`` and ``size.nvme``: with durable blocks under lease, which have a slot in each
    tier, and with puts that never end, which have one in DRAM alone."""

    def __init__(self, target: str, size: Size) -> None:
        self.size = size
        self.client = Client(target, transport="shm", timeout=PATIENCE)
        spec = NamespaceSpec(model="ballast", block_tokens=BLOCK_TOKENS, block_bytes=size.block_bytes)
        self.ns = self.client.namespace(spec)
        self._leases = ExitStack()
        self._puts: list[tuple[Writer, int]] = []  # and how many slots each has

    def fill(self) -> None:
        """Fills DRAM to the last slot, then gives ``size.dram`` slots back."""
        most = self.size.dram_bytes // self.size.block_bytes
        keys = self.ns.keys_from_hashes(number.to_bytes(8, "little") for number in range(most + _PIECE))
        for first in range(0, self.size.nvme_ballast, _PIECE):
            self._lease(keys, first, min(first + _PIECE, self.size.nvme_ballast))
        here = self.size.nvme_ballast
        while (got := self._reserve(keys, here, _PIECE)) == _PIECE:
            here += got
        back = 0
        while back < self.size.dram:
            if not self._puts:
                raise InternalError(f"DRAM has {here + got} slots, too few for {self.size.dram} and the ballast")
            put, slots = self._puts.pop()
            put.finish(InternalError("given back"), None)
            back += slots
        here -= back - got
        if back > self.size.dram and self._reserve(keys, here, back - self.size.dram) != back - self.size.dram:
            raise InternalError("slots that were given back are not there")

    def _lease(self, keys: Keys, first: int, end: int) -> None:
        done = self.ns.put(keys[:end], contents(keys[first:end], self.size), first=first, ack="durable")
        views = self._leases.enter_context(self.ns.borrow(keys[:end], first=first))
        if done.stored != end - first or len(views) != end - first:
            raise InternalError(f"ballast: {done}, {len(views)} of {end - first} blocks are held")
        views.clear()

    def _reserve(self, keys: Keys, first: int, count: int) -> int:
        put = self.ns.writer(keys[: first + count], first=first).__enter__()
        self._puts.append((put, sum(put.wanted)))
        return self._puts[-1][1]

    def close(self) -> None:
        for put, _ in reversed(self._puts):
            put.finish(InternalError("the replay has ended"), None)
        self._leases.close()
        self.client.close()


def settings(case: Case, size: Size, directory: Path) -> dict[str, str | int | float]:
    """Of the node: no watermarks, so that blocks leave when another needs their slot and not before."""
    return {
        "eviction": case.policy, "high_watermark": 1.0, "low_watermark": 0.9999, "segment_bytes": DRAM_SEGMENT,
        "max_sessions": 8, "max_leased_slots": 65_536, "max_leased_bytes": size.dram_bytes, "room_wait": PATIENCE,
        "nvme_dir": str(directory), "nvme_capacity": (size.nvme_segments + 1) * NVME_SEGMENT - MIB,
        "nvme_segment_bytes": NVME_SEGMENT, "nvme_write_rule": case.rule, "nvme_admission": case.admission,
        "nvme_write_budget": int(case.budget * size.block_bytes), "nvme_scrub": 0, "nvme_flush": 0,
        "heartbeat": 5 * PATIENCE, "peer_timeout": 5 * PATIENCE,
    }  # fmt: skip


@contextmanager
def workplace(directory: Path | None) -> Iterator[Path]:
    """A new directory on the disk to use, removed afterwards."""
    place = Path(tempfile.mkdtemp(prefix="kvstore-bench-", dir=directory or Path.cwd()))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def replay(case: Case, trace: list[Request], total: int, size: Size, place: Path, progress: Progress) -> Found:
    """One case on a node of its own."""
    clock = TraceClock(place / f"{case.name}.clock", create=True)
    launcher = ("kvstore.cli.bench.trace_clock", str(place / f"{case.name}.clock"))
    with OwnNode(size.dram_bytes, settings(case, size, place / case.name), launcher) as (target, _):
        ballast = Ballast(target, size)
        try:
            ballast.fill()
            with Client(target, transport="shm", timeout=PATIENCE) as client:
                found = Replay(client, case, size, clock).run(trace, total, progress)
                _check(client, size)
        finally:
            ballast.close()
    shutil.rmtree(place / case.name)
    return found


def _check(client: Client, size: Size) -> None:
    """The capacities were what they should have been, and all of it worked."""
    nvme = client.stat(timeout=PATIENCE).tiers[1]
    if nvme.segments_ready != size.nvme_segments or nvme.state != "ok":
        raise InternalError(
            f"NVMe: {nvme.segments_ready} segments, not {size.nvme_segments}; {nvme.state} {nvme.reason}"
        )


def rows_of(case: Case, size: Size, found: Found) -> list[Row]:
    """A row for each metric."""
    params = {**asdict(case), **asdict(size), "requests": found.requests, "blocks": found.blocks}
    params["replay_seconds"] = round(found.seconds, 1)
    if (size.dram, size.nvme) != (3000, 15_000):
        params["simulated"] = None
    made = found.metrics(size).items()
    return [
        row(f"{case.name}.{name}", unit, [value], params={**params, "metric": name}) for name, (value, unit) in made
    ]


def to_text(rows: list[Row]) -> str:
    """A table for people: a line for each case."""
    lines = [
        f"{'case':20}{'hits':>8}{'simulated':>11}{'DRAM':>8}{'NVMe':>8}{'written/request':>17}{'written bytes':>15}"
    ]
    cases: dict[str, dict[str, Row]] = {}
    for one in rows:
        cases.setdefault(one.params["name"], {})[one.params["metric"]] = one
    for name, by in cases.items():
        simulated = by["hits"].params["simulated"]
        lines.append(
            f"{name:20}{by['hits'].value:8.4f}{'-' if simulated is None else f'{simulated:.3f}':>11}"
            f"{by['dram_hits'].value:8.4f}{by['nvme_hits'].value:8.4f}"
            f"{by['written_blocks_per_request'].value:17.2f}{by['written_bytes'].value:15,.0f}"
        )
    return "\n".join(lines)


def references(path: Path) -> int:
    """Block references of a trace, those of partial blocks included."""
    with path.open(encoding="utf-8") as lines:
        return sum(len(json.loads(line)["hash_ids"]) for line in lines)


def run(
    trace: Path, cases: tuple[Case, ...] = CASES, size: Size = Size(), directory: Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:  # fmt: skip
    """All cases one after another. Partial blocks are never stored and count as misses."""
    requests, total = load_trace(trace), references(trace)
    rows: list[Row] = []
    with workplace(directory) as place:
        for case in cases:
            rows += rows_of(case, size, replay(case, requests, total, size, place, progress))
    return Report("replay", rows=rows)
