"""The torture scenarios. Each takes a seed, runs one round on real processes and returns its tally.

Every scenario asserts its own promise; bytes are compared by the worker processes and counted in the tally.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import numpy as np

from kvstore import Client
from tests.torture.content import expected, spec, tokens
from tests.torture.harness import Tally, TortureNode, Worker, arena, eventually

BLOCK_BYTES = 262_144
CHAINS = 16
BLOCKS = 16
ROOMY = 512 << 20  # more than CHAINS * BLOCKS blocks: nothing is evicted
TIGHT = 40 << 20  # far less: always full and evicting


class Round:
    """Workers of one round, and what their logs add up to."""

    def __init__(self, node: TortureNode, folder: Path, seed: int, block_bytes: int = BLOCK_BYTES) -> None:
        self.node, self.folder, self.seed, self.block_bytes = node, folder, seed, block_bytes
        self.random = random.Random(seed)
        self.workers: list[Worker] = []

    def worker(self, role: str, **options: object) -> Worker:
        number = len(self.workers)
        transport = options.pop("transport", self.random.choice(("shm", "shm", "tcp")))
        made = Worker(
            role,
            self.folder / f"{role}-{self.seed}-{number}.log",
            self.node.target,
            seed=self.seed,
            number=number,
            chains=CHAINS,
            blocks=BLOCKS,
            block_bytes=self.block_bytes,
            transport=transport,
            **options,
        )
        self.workers.append(made)
        return made

    def pause(self, low: float, high: float) -> None:
        time.sleep(self.random.uniform(low, high))

    def finish(self) -> Tally:
        """Kills what is left and reads the logs. A worker that died by itself is a failure."""
        tally = Tally()
        for worker in self.workers:
            code = worker.process.poll()
            assert code in (None, 0, -9), f"worker {worker.log.name} died with {code}: {worker.errors()}"
            worker.kill()
        for worker in self.workers:
            tally.add(worker.log)
        assert tally.wrong == 0, f"seed {self.seed}: {tally.wrong} wrong blocks"
        return tally

    def lost(self, tally: Tally, promised: dict[int, int] | None = None) -> int:
        """Acknowledged blocks (``promised``: blocks by chain) that are not here any more; all others are compared byte
        by byte."""
        missing = 0
        with Client(self.node.target, timeout=30.0, on_failure="raise") as client:
            ns = client.namespace(spec(self.block_bytes))
            for chain, blocks in (tally.acks if promised is None else promised).items():
                keys = ns.keys(tokens(self.seed, chain, BLOCKS))[:blocks]
                into = [np.empty(self.block_bytes, np.uint8) for _ in keys]
                got = ns.get(keys, into=into)
                missing += blocks - got
                for index in range(got):
                    assert np.array_equal(into[index], expected(keys[index], self.block_bytes)), (chain, index)
                tally.checked += got
        return missing


def writer_killed(seed: int) -> tuple[Tally, int]:
    """A writer dies midway through a put: nothing of it is visible, and its slots come back."""
    with arena(ROOMY) as (node, folder):
        run = Round(node, folder, seed)
        reader = run.worker("reader")
        for _ in range(4):
            writer = run.worker("writer", transport=run.random.choice(("shm", "tcp")))
            writer.wait_for("start")
            run.pause(0.0, 0.5)
            writer.kill()
        eventually(lambda: node.stat()["writing"] == 0, "slots of dead writers come back")
        reader.wait_for("checked", 3)
        tally = run.finish()
        return tally, run.lost(tally)


def reader_killed(seed: int) -> tuple[Tally, int]:
    """A reader dies holding leases: they are given back."""
    with arena(ROOMY) as (node, folder):
        run = Round(node, folder, seed)
        writer = run.worker("writer")
        writer.wait_for("ack", 12)
        holders = [run.worker("holder", hold=600, transport="shm") for _ in range(3)]
        for holder in holders:
            holder.wait_for("checked", 2)
        run.pause(0.0, 0.3)
        for holder in holders:
            holder.kill()
        writer.kill()
        eventually(lambda: node.stat()["leased_blocks"] == 0, "leases of dead readers are given back")
        tally = run.finish()
        return tally, run.lost(tally)


def reader_stopped(seed: int) -> tuple[Tally, int]:
    """A stopped reader keeps its blocks untouched while the store turns over; the rest works on."""
    with arena(TIGHT) as (node, folder):
        run = Round(node, folder, seed)
        writers = [run.worker("writer") for _ in range(2)]
        writers[0].wait_for("ack", 4)
        holder = run.worker("holder", hold=600, transport="shm")
        holder.wait_for("hold")
        holder.wait_for("checked", 2)
        holder.signal(signal.SIGSTOP)
        before = writers[0].log.read_text().count("ack")
        run.pause(1.0, 2.0)
        assert node.stat()["leases"] >= 1, "a stopped reader keeps its lease"
        writers[0].wait_for("ack", before + 20)
        holder.signal(signal.SIGCONT)
        seen = holder.log.read_text().count("checked")
        holder.wait_for("checked", seen + 5)
        return run.finish(), 0


def node_killed(seed: int) -> tuple[Tally, int]:
    """The node dies under load while clients map its memory: no wrong byte, nothing acknowledged is lost."""
    with arena(ROOMY) as (node, folder):
        run = Round(node, folder, seed)
        writers = [run.worker("writer") for _ in range(2)]
        run.worker("reader")
        holder = run.worker("holder", hold=1.0, transport="shm")
        writers[0].wait_for("ack", 2)
        for _ in range(3):
            run.pause(0.2, 1.2)
            node.kill()
            run.pause(0.0, 0.4)
            node.start()
            assert holder.alive()
        checked = holder.log.read_text().count("checked")
        holder.wait_for("checked", checked + 3)
        for writer in writers:
            writer.kill()
        eventually(lambda: node.stat()["writing"] == 0, "slots of dead writers come back")
        tally = run.finish()
        eventually(lambda: node.stat()["orphan_sessions"] == 0, "sessions of dead clients end")
        return tally, run.lost(tally)


def writer_stopped_over_restart(seed: int) -> tuple[Tally, int]:
    """A writer stopped in a put wakes after the node was killed and filled anew: it damages nothing."""
    with arena(TIGHT) as (node, folder):
        run = Round(node, folder, seed)
        sleeper = run.worker("writer", transport="shm")
        sleeper.wait_for("ack", 1)
        run.pause(0.0, 0.2)
        sleeper.signal(signal.SIGSTOP)
        node.kill()
        node.start()
        others = [run.worker("writer") for _ in range(2)]
        reader = run.worker("reader")
        others[0].wait_for("ack", 20)
        holder = run.worker("holder", hold=600, transport="shm")
        holder.wait_for("checked", 1)
        sleeper.signal(signal.SIGCONT)
        seen = reader.log.read_text().count("checked")
        reader.wait_for("checked", seen + 10)
        held = holder.log.read_text().count("checked")
        holder.wait_for("checked", held + 10)
        return run.finish(), 0


def node_killed_while_full(seed: int) -> tuple[Tally, int]:
    """The node is killed again and again while full and evicting, with stopped and living clients."""
    with arena(TIGHT) as (node, folder):
        run = Round(node, folder, seed)
        writers = [run.worker("writer") for _ in range(2)]
        run.worker("reader")
        holder = run.worker("holder", hold=0.5, transport="shm")
        writers[0].wait_for("ack", 10)
        for _ in range(3):
            run.pause(0.1, 1.0)
            stopped = run.random.choice((writers[1], holder))
            stopped.signal(signal.SIGSTOP)
            node.kill()
            node.start()
            run.pause(0.2, 0.6)
            stopped.signal(signal.SIGCONT)
        seen = holder.log.read_text().count("checked")
        holder.wait_for("checked", seen + 3)
        return run.finish(), 0


SCENARIOS = (
    writer_killed,
    reader_killed,
    reader_stopped,
    node_killed,
    writer_stopped_over_restart,
    node_killed_while_full,
)
