"""Crashes of a node with two tiers under load: SIGKILL, the loss of its memory, the loss of its disk's power.

A series of crashes runs on one node and one disk, so that what survived one crash must survive the next. Every crash
has chains of its own (a seed); of the last two everything promised must be there, older ones are evicted to make room.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kvstore import Client
from tests.faults.disks import LoopDisk, loop_disk
from tests.torture.content import spec, tokens
from tests.torture.harness import Tally, TortureNode, arena, eventually
from tests.torture.scenarios import BLOCKS, CHAINS, Round

Mode = Literal["kill", "kill_full", "memory_lost", "power"]
MODES: tuple[Mode, ...] = ("kill", "kill_full", "memory_lost", "power")
BLOCK_BYTES = 64 << 10
MIB = 1 << 20
ROOMY, TIGHT = 80 * MIB, 14 * MIB  # one crash's chains take 16 MiB


def can_mount() -> bool:
    """Power is lost on a loop device, which only root can have; elsewhere such a crash is a loss of memory."""
    return os.geteuid() == 0 and Path("/dev/loop-control").exists()


def settings(directory: Path, rule: str) -> dict[str, object]:
    return {
        "nvme_dir": str(directory), "nvme_capacity": "72MiB", "nvme_segment_bytes": "2MiB", "nvme_write_rule": rule,
        "room_wait": "20s", "segment_bytes": "1MiB", "max_sessions": 64,
    }  # fmt: skip


@contextmanager
def disk_for(mode: str, folder: Path) -> Iterator[LoopDisk | None]:
    """A loop device for a loss of power, else None."""
    with loop_disk(folder, 112) if mode == "power" and can_mount() else nullcontext() as disk:
        yield disk


@dataclass
class Score:
    """What a series of crashes came to."""

    crashes: int = 0
    acknowledged: int = 0
    durable: int = 0
    checked: int = 0
    lost: int = 0
    wrong: int = 0
    notes: list[str] = field(default_factory=list)

    def line(self, name: str) -> str:
        return (
            f"{name}: {self.crashes} crashes, {self.acknowledged} puts acknowledged, {self.durable} blocks promised "
            f"durable, {self.checked} blocks checked byte by byte, {self.lost} lost, {self.wrong} wrong"
        )


class Crashes:
    """One series. ``kill``: DRAM has room for all; ``kill_full``: it is always full, and both tiers have room. Every
    acknowledged block must be hit again. The others: what was acknowledged as durable must be there."""

    def __init__(self, mode: Mode, seed: int, rule: str, place: Path) -> None:
        self.mode, self.seed, self.rule, self.place = mode, seed, rule, place
        self.score = Score()
        self.kept: list[tuple[Round, dict[int, int]]] = []  # rounds whose promises still hold

    def run(self, crashes: int) -> Score:
        with disk_for(self.mode, self.place) as disk:
            directory = disk.directory if disk else self.place / "nvme"
            with arena(ROOMY if self.mode == "kill" else TIGHT, settings(directory, self.rule)) as (node, folder):
                for _ in range(crashes):
                    self._round(node, folder, disk)
        return self.score

    def _round(self, node: TortureNode, folder: Path, disk: LoopDisk | None) -> None:
        self.seed += 1
        run = Round(node, folder, self.seed, BLOCK_BYTES)
        writers = [run.worker("writer", durable=share) for share in (0.6, 0.1)]
        run.worker("reader")
        writers[0].wait_for("durable", run.random.randint(1, 4))
        run.pause(0.0, 0.6)
        self._crash(run, node, disk)
        node.start()
        if self.mode in ("kill", "kill_full"):  # the clients live on
            run.pause(0.1, 0.4)
        for worker in run.workers:
            worker.kill()
        eventually(lambda: node.stat()["writing"] == 0, "slots of dead writers come back")
        self._check(run)

    def _crash(self, run: Round, node: TortureNode, disk: LoopDisk | None) -> None:
        if disk:
            disk.lose_power()
            run.pause(0.0, 0.05)
        node.kill()
        if self.mode in ("memory_lost", "power"):  # the machine went down, and all processes with it
            for worker in run.workers:
                worker.kill()
            node.lose_memory()
        if disk:
            disk.unmount()
            disk.mount()

    def _check(self, run: Round) -> None:
        tally, score = run.finish(), self.score
        promised = tally.acks if self.mode in ("kill", "kill_full") else tally.durable
        self.kept = [*self.kept[-1:], (run, promised)]
        score.crashes += 1
        score.acknowledged += tally.acknowledged
        score.durable += sum(tally.durable.values())
        for kept, blocks in self.kept:
            missing = kept.lost(tally, blocks)
            if missing:
                score.notes.append(
                    f"{self.mode} {self.rule} seed {self.seed}: {missing} of seed {kept.seed} are missing"
                )
            score.lost += missing
        score.checked += tally.checked
        score.wrong += tally.wrong
        if len(self.kept) > 1:
            forget(self.kept[0][0])
        for log in run.folder.glob(f"*-{run.seed}-*"):
            log.unlink()


def forget(run: Round) -> None:
    """Evicts the chains of a round, whose promises end with that."""
    with Client(run.node.target, timeout=30.0, on_failure="raise") as client:
        ns = client.namespace(spec(run.block_bytes))
        for chain in range(CHAINS):
            ns.evict(ns.keys(tokens(run.seed, chain, BLOCKS)))


def crashes(mode: Mode, seed: int, count: int, rule: str = "") -> Score:
    """A series in a place of its own. ``rule``: by the seed when empty."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kvstore-torture-") as place:
        return Crashes(mode, 1000 * seed, rule or ("clean", "through")[seed % 2], Path(place)).run(count)


def _scenario(mode: Mode, seed: int) -> tuple[Tally, int]:
    score = crashes(mode, seed, 2)
    assert not score.notes, score.notes
    assert score.durable
    return Tally(acknowledged=score.acknowledged, checked=score.checked, wrong=score.wrong), score.lost


def two_tiers_killed(seed: int) -> tuple[Tally, int]:
    """SIGKILL of a node whose DRAM holds everything: what was acknowledged is hit again."""
    return _scenario("kill", seed)


def two_tiers_killed_while_full(seed: int) -> tuple[Tally, int]:
    """SIGKILL of a node whose DRAM is full and moving: what was acknowledged is hit again, in one tier or the other."""
    return _scenario("kill_full", seed)


def memory_lost(seed: int) -> tuple[Tally, int]:
    """The machine goes down, and the memory file with it: what was durable is there."""
    return _scenario("memory_lost", seed)


def power_lost(seed: int) -> tuple[Tally, int]:
    """So does the power of the disk: what was written and not synced is gone, what was durable is there."""
    return _scenario("power", seed)


SCENARIOS = (two_tiers_killed, two_tiers_killed_while_full, memory_lost, power_lost)
