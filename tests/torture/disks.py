"""Disks that fill up, fail or turn read-only under a loaded node: it lives, says so, reads on, and recovers."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kvstore import Client
from tests.faults.disks import LoopDisk, loop_disk
from tests.torture.content import expected, spec, tokens
from tests.torture.harness import Tally, TortureNode, arena, eventually
from tests.torture.scenarios import BLOCKS, Round

MIB = 1 << 20
BLOCK_BYTES = 64 << 10
DRAM, NVME = 12 * MIB, "40MiB"  # the load's chains take 16 MiB
KEPT = 500_000  # of the chain that is put before the trouble, and must be there after it
_LATE = 120.0  # seconds until a state must be entered: probes of a broken disk grow rare, up to 30 s
_CALLS = {
    "write": "pwritev,pwritev64,pwritev2,pwritev64v2,pwrite,pwrite64",
    "sync": "fdatasync,fsync",
    "read": "preadv,preadv64,preadv2,preadv64v2,pread64",
}


class Loaded:
    """A node under load, and a chain that is durable on its disk and pinned: the load takes more than a broken disk and
    DRAM hold, so that eviction could take it otherwise."""

    def __init__(self, node: TortureNode, folder: Path, seed: int) -> None:
        self.node, self.pid = node, node.process.pid if node.process else 0
        self.run = Round(node, folder, seed, BLOCK_BYTES)
        self.put(KEPT)
        self.writers = [self.run.worker("writer", durable=share) for share in (0.5, 0.0)]
        self.reader = self.run.worker("reader")
        self.run.worker("dropper")
        self.writers[0].wait_for("durable", 3)

    def put(self, chain: int) -> None:
        """A chain of its own, durable and never evicted."""
        with Client(self.node.target, timeout=60.0, on_failure="raise") as client:
            ns = client.namespace(spec(BLOCK_BYTES))
            keys = ns.keys(tokens(self.run.seed, chain, BLOCKS))
            done = ns.put(keys, [expected(key, BLOCK_BYTES) for key in keys], ack="durable")
            assert done.complete, done
            assert ns.pin(keys, hard=True) == len(keys), chain

    def check(self, chain: int) -> None:
        """All of a chain is there, byte for byte."""
        with Client(self.node.target, timeout=60.0, on_failure="raise") as client:
            ns = client.namespace(spec(BLOCK_BYTES))
            keys = ns.keys(tokens(self.run.seed, chain, BLOCKS))
            into = [np.empty(BLOCK_BYTES, np.uint8) for _ in keys]
            assert ns.get(keys, into) == len(keys), chain
        assert all(np.array_equal(got, expected(key, BLOCK_BYTES)) for got, key in zip(into, keys, strict=True))

    def becomes(self, *states: str, says: str = "") -> None:
        """Stat and the health page tell the state and the reason; the node lives and serves."""
        eventually(lambda: self.node.nvme().state in states, f"the NVMe tier is {' or '.join(states)}", _LATE)
        page = self.node.health()
        told = page["tiers"]["nvme"]  # type: ignore[index]
        assert told["state"] in states or "ok" not in states, page
        assert says in told["reason"], page
        if "ok" not in states:
            assert page["state"] == "degraded", page
            assert told["advice"], page
        seen = self.reader.log.read_text().count("checked")
        self.reader.wait_for("checked", seen + 5)
        assert self.node.process is not None
        assert self.node.process.poll() is None
        assert self.node.process.pid == self.pid

    def recovers(self) -> None:
        """The tier is well, what was durable is there, new blocks become durable."""
        self.becomes("ok")
        self.check(KEPT)
        self.put(KEPT + 1)
        self.check(KEPT + 1)

    def end(self) -> tuple[Tally, int]:
        for worker in self.run.workers:
            worker.kill()
        return self.run.finish(), 0


@contextmanager
def loaded(seed: int, directory: Path, environ: dict[str, str] | None = None, capacity: str = NVME) -> Iterator[Loaded]:
    settings = {
        "nvme_dir": str(directory), "nvme_capacity": capacity, "nvme_segment_bytes": "2MiB", "nvme_scrub": 0,
        "segment_bytes": "1MiB", "max_sessions": 64, "nvme_write_rule": ("clean", "through")[seed % 2],
    }  # fmt: skip
    with arena(DRAM, settings, environ) as (node, folder):
        yield Loaded(node, folder, seed)


@contextmanager
def workplace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvstore-torture-") as place:
        yield Path(place)


def disk_full(seed: int) -> tuple[Tally, int]:
    """The file system is full long before the tier's capacity: writing goes on in the segments there are."""
    with workplace() as place, loop_disk(place, 64) as disk:
        ballast = disk.mount_point / "ballast"
        with open(ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.free_bytes() - 12 * MIB)
        with loaded(seed, disk.directory) as one:
            one.becomes("degraded", says="No space left")
            one.check(KEPT)
            ballast.unlink()
            one.recovers()
            return one.end()


def disk_errors(seed: int) -> tuple[Tally, int]:
    """Writes, syncs or reads of the segment files fail."""
    calls = ("write", "sync", "read")[seed % 3]
    with workplace() as place:
        switch = place / "on"
        with loaded(seed, place / "tier", _faulty(place, switch, _CALLS[calls])) as one:
            switch.touch()
            one.becomes("degraded", says="Input/output error")
            if calls != "read":
                one.check(KEPT)
            switch.unlink()
            one.recovers()
            return one.end()


def _faulty(place: Path, switch: Path, calls: str) -> dict[str, str]:
    """Environment in which these calls fail while the switch is there."""
    library, source = place / "fault.so", Path(__file__).parents[1] / "faults" / "fault.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    faults = {"FAULT_PATH": "segment-", "FAULT_SWITCH": str(switch), "FAULT_CALLS": calls}
    return {"LD_PRELOAD": str(library), "FAULT_ERRNO": str(errno.EIO), **faults}


def disk_read_only(seed: int) -> tuple[Tally, int]:
    """ext4 turns read-only on an error: reads go on. Then the disk is taken away, repaired and mounted again."""
    with (
        workplace() as place,
        loop_disk(place, 64, "loop,errors=remount-ro") as disk,
        loaded(seed, disk.directory) as one,
    ):
        disk.turn_read_only()
        one.becomes("read_only", says="ead-only")
        one.check(KEPT)
        _replace(disk, one)
        one.recovers()
        return one.end()


def disk_dead(seed: int) -> tuple[Tally, int]:
    """Every access fails: the node goes on with DRAM alone until the disk is back."""
    with workplace() as place, loop_disk(place, 64) as disk, loaded(seed, disk.directory) as one:
        _replace(disk, one)
        one.recovers()
        return one.end()


def _replace(disk: LoopDisk, one: Loaded) -> None:
    """The disk fails for good, is unmounted (the node must have let go of it) and comes back."""
    disk.lose_power()
    one.becomes("failed")
    disk.unmount()
    disk.mount()


SCENARIOS: tuple[Callable[[int], tuple[Tally, int]], ...] = (disk_full, disk_errors, disk_read_only, disk_dead)
