"""A put storm: several processes put twice as much as DRAM holds into a node with an NVMe tier, all at once.

Every block is got back and compared afterwards; meanwhile the memory of the node is watched. The NVMe tier has room for
all of it, so a block that was dropped is a fault and not a choice.
"""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from kvstore import Client, Keys, Namespace, NamespaceSpec
from kvstore.cli.bench.node import OwnNode
from kvstore.cli.bench.report import Report, Row, row
from kvstore.core.errors import InternalError

MIB = 1 << 20
BLOCK_TOKENS = 16
PATIENCE = 120.0  # seconds that one call may take
_WATCH = 0.1  # seconds between two looks at the node's memory


@dataclass(frozen=True, slots=True)
class Storm:
    """How much is put, by whom. ``times``: of the DRAM capacity. ``batch``: blocks a put; ``chain``: blocks a chain."""

    dram_bytes: int = 512 * MIB
    block_bytes: int = 2 * MIB
    processes: int = 8
    times: float = 2.0
    batch: int = 4
    chain: int = 16

    @property
    def chains(self) -> int:
        """Chains that each process puts."""
        return -(-int(self.times * self.dram_bytes) // (self.block_bytes * self.chain * self.processes))

    @property
    def blocks(self) -> int:
        return self.chains * self.chain * self.processes

    @property
    def nvme_bytes(self) -> int:
        """Room for everything, with trailers, segments begun and the index."""
        return int(self.blocks * (self.block_bytes + 8192) * 1.1) + 64 * MIB


@dataclass
class Outcome:
    """What one process saw: seconds of each put, blocks put, dropped (and why), missing and wrong ones afterwards."""

    latencies: list[float] = field(default_factory=list)
    put: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    wrong: int = 0


class Putter:
    """One process's chains."""

    def __init__(self, target: str, storm: Storm, number: int) -> None:
        self.storm, self.number = storm, number
        self.client = Client(target, transport="shm", timeout=PATIENCE)
        spec = NamespaceSpec(model="storm", block_tokens=BLOCK_TOKENS, block_bytes=storm.block_bytes)
        self.ns: Namespace = self.client.namespace(spec)
        self.pattern = np.random.default_rng(number).integers(0, 256, storm.block_bytes, np.uint8)
        self.buffers = np.tile(self.pattern, (storm.batch, 1))
        self.outcome = Outcome()

    def keys(self, chain: int) -> Keys:
        start = (self.number * self.storm.chains + chain) << 10
        return self.ns.keys([start + token for token in range(self.storm.chain * BLOCK_TOKENS)])

    def fill(self, keys: Keys, first: int, count: int) -> list[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
        """What blocks must hold: this process's pattern, and their keys at both ends."""
        for index in range(count):
            mark = np.frombuffer(keys[first + index], np.uint8)
            self.buffers[index, :16] = self.buffers[index, -16:] = mark
        return list(self.buffers[:count])

    def put_all(self) -> None:
        for chain in range(self.storm.chains):
            keys = self.keys(chain)
            for first in range(0, len(keys), self.storm.batch):
                self._put(keys[: first + self.storm.batch], first)

    def _put(self, keys: Keys, first: int) -> None:
        blocks = self.fill(keys, first, len(keys) - first)
        begun = time.perf_counter()
        done = self.ns.put(keys, blocks, first=first)
        self.outcome.latencies.append(time.perf_counter() - begun)
        self.outcome.put += len(blocks)
        for reason, count in done.reasons.items():
            self.outcome.dropped[reason] = self.outcome.dropped.get(reason, 0) + count

    def check_all(self) -> None:
        """Gets everything back."""
        into = np.zeros((self.storm.chain, self.storm.block_bytes), np.uint8)
        for chain in range(self.storm.chains):
            keys = self.keys(chain)
            got = self.ns.get(keys, list(into))
            self.outcome.missing += len(keys) - got
            for first in range(0, got, self.storm.batch):
                count = min(self.storm.batch, got - first)
                want = np.stack(self.fill(keys, first, count))
                self.outcome.wrong += int((into[first : first + count] != want).any(axis=1).sum())


def work(target: str, storm: Storm, number: int, pipe: Connection) -> None:
    """A process: puts at the first word, checks at the second."""
    putter = Putter(target, storm, number)
    for step in (putter.put_all, putter.check_all):
        pipe.send("ready")
        pipe.recv()
        step()
    pipe.send(putter.outcome)
    putter.client.close()


class Watch:
    """Resident memory of a process over time, without what it shares (the memory file): bytes."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.private: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self.private.append(self._look())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.private.append(self._look())

    def _run(self) -> None:
        while not self._stop.wait(_WATCH):
            self.private.append(self._look())

    def _look(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))

    @property
    def growth(self) -> int:
        """How far the second half of the watch rose above the most of the first."""
        half = max(1, len(self.private) // 2)
        return max(self.private[half:]) - max(self.private[:half])


@dataclass
class Weathered:
    """What a storm came to."""

    outcomes: list[Outcome]
    seconds: float
    watch: Watch

    @property
    def latencies(self) -> list[float]:
        return [one for outcome in self.outcomes for one in outcome.latencies]

    @property
    def dropped(self) -> dict[str, int]:
        """Blocks that a put did not store, by reason."""
        total: dict[str, int] = {}
        for outcome in self.outcomes:
            for reason, count in outcome.dropped.items():
                total[reason] = total.get(reason, 0) + count
        return total

    @property
    def missing(self) -> int:
        return sum(outcome.missing for outcome in self.outcomes)

    @property
    def wrong(self) -> int:
        return sum(outcome.wrong for outcome in self.outcomes)


def weather(target: str, pid: int, storm: Storm) -> Weathered:
    """A storm on a node that runs as process ``pid``."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(storm.processes):
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(target, storm, number, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        _go(pipes)
        begun = time.perf_counter()
        with Watch(pid) as watch:
            _await(pipes)
        taken = time.perf_counter() - begun
        for pipe in pipes:
            pipe.send("check")
        outcomes = [_answer(pipe) for pipe in pipes]
        return Weathered(outcomes, taken, watch)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _go(pipes: Sequence[Connection]) -> None:
    _await(pipes)
    for pipe in pipes:
        pipe.send("put")


def _await(pipes: Sequence[Connection]) -> None:
    for pipe in pipes:
        if pipe.recv() != "ready":
            raise InternalError("a process of the storm is out of step")


def _answer(pipe: Connection) -> Outcome:
    found = pipe.recv()
    assert isinstance(found, Outcome)
    return found


def settings(storm: Storm, directory: Path) -> dict[str, str | int | float]:
    """Of the node: defaults, and an NVMe tier that holds everything."""
    segment = 16 * MIB
    while segment < 2 * storm.block_bytes:
        segment *= 2
    return {"nvme_dir": str(directory), "nvme_capacity": storm.nvme_bytes, "nvme_segment_bytes": segment}


def rows_of(storm: Storm, found: Weathered) -> list[Row]:
    """Latencies, what became of the blocks, and the node's memory."""
    params = {
        "dram_bytes": storm.dram_bytes, "block_bytes": storm.block_bytes, "processes": storm.processes,
        "batch": storm.batch, "blocks": storm.blocks, "dropped": found.dropped,
    }  # fmt: skip
    taken = sorted(one * 1e6 for one in found.latencies)
    quantiles = statistics.quantiles(taken, n=100, method="inclusive") if len(taken) > 1 else taken * 99
    blocks = float(storm.blocks)
    private = found.watch.private
    values = {
        "put.p50": (quantiles[49], "us"),
        "put.p99": (quantiles[98], "us"),
        "put.most": (taken[-1], "us"),
        "throughput": (blocks * storm.block_bytes / found.seconds / 1e9, "GB/s"),
        "dropped": (sum(found.dropped.values()) / blocks, "ratio"),
        "missing": (found.missing / blocks, "ratio"),
        "wrong": (found.wrong / blocks, "ratio"),
        "node.private.begin": (private[0], "bytes"),
        "node.private.most": (max(private), "bytes"),
        "node.private.growth_in_second_half": (found.watch.growth, "bytes"),
    }
    return [row(f"storm.{name}", unit, [value], params=params) for name, (value, unit) in values.items()]


def run(storm: Storm, directory: Path | None = None) -> Report:
    """A storm on a node of its own, whose NVMe tier is in a new directory below ``directory``."""
    place = Path(tempfile.mkdtemp(prefix="kvstore-bench-", dir=directory or Path.cwd()))
    node = OwnNode(storm.dram_bytes, settings(storm, place / "nvme"))
    try:
        with node as (target, _):
            return Report("storm", rows=rows_of(storm, weather(target, node.pid, storm)))
    finally:
        shutil.rmtree(place, ignore_errors=True)
