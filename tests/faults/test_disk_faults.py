"""A disk that is full, fails, turns read-only or dies degrades the tier, never the node, and the tier recovers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvstore.tiers.nvme.format import ENTRY, seal
from kvstore.tiers.nvme.index import IndexGone, IndexProcess
from kvstore.tiers.nvme.ticket import Outcome
from kvstore.tiers.nvme.tier import NvmeTier
from tests.faults.disks import LoopDisk, drop_caches, loop_disk
from tests.unit.nvme.blocks import MIB, Blocks, config, opened, recovered, until


def test_a_full_disk_means_fewer_segments_and_a_clear_word(disk: LoopDisk) -> None:
    blocks = Blocks(400_000)
    ballast = disk.mount_point / "ballast"
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.free_bytes() - 12 * MIB)
    with opened(config(disk.directory, 48 * MIB)) as tier:
        slots = blocks.allocate(tier, 1000, patience=1.0)
        held = len(slots.slots)
        assert 8 <= held <= 24
        assert until(lambda: "DISK_FULL" in tier.health.causes)
        assert tier.health.state == "degraded"
        assert "No space left" in tier.health.reason
        assert "free space" in tier.health.advice
        tier.free(slots.slots[:4])  # writing goes on in the segments there are
        assert until(lambda: not tier.details().limbo)
        kept = blocks.put_durably(tier, [1, 2, 3])
        assert blocks.get(tier, kept, [1, 2, 3]) == ["", "", ""]
        ballast.unlink()
        assert until(lambda: tier.health.state == "ok" and tier.stat().segments_ready * 2 > held)
        assert len(blocks.allocate(tier, 5).slots) == 5


def test_removals_are_recorded_on_a_full_disk(disk: LoopDisk) -> None:
    blocks = Blocks(4096)
    with opened(config(disk.directory, 16 * MIB)) as tier:
        slots = blocks.put_durably(tier, list(range(500)))
        with open(disk.mount_point / "ballast", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.free_bytes())
        assert disk.free_bytes() == 0
        tier.free(slots.slots[::2])
        tier.sync()
        again = blocks.put_durably(tier, [1000])
        assert blocks.get(tier, again, [1000]) == [""]
    tier = NvmeTier(config(disk.directory, 16 * MIB))
    assert set(recovered(tier)) == {blocks.key(n) for n in [*range(1, 500, 2), 1000]}
    tier.close()


def test_a_file_system_that_turns_read_only_serves_reads_until_it_is_released_for_repair(disk: LoopDisk) -> None:
    blocks = Blocks()
    with opened(config(disk.directory)) as tier:
        slots = blocks.put_durably(tier, [1, 2, 3])
        disk.turn_read_only()
        _, ticket = blocks.put(tier, [4])
        assert ticket.wait_durable(30)
        assert set(ticket.outcomes.tolist()) <= {Outcome.FAILED}
        assert until(lambda: tier.health.state == "read_only")
        assert "remount" in tier.health.advice
        assert not len(tier.allocate(blocks.bytes, blocks.cut.count, 1).slots)
        drop_caches()
        assert blocks.get(tier, slots, [1, 2, 3]) == ["", "", ""]
        tier.release()  # ext4 takes writes again only after it was unmounted
        assert until(lambda: tier.health.state == "failed")
        disk.unmount()
        disk.mount()
        assert until(lambda: tier.health.state == "ok")
        assert blocks.get(tier, slots, [1, 2, 3]) == ["", "", ""]
        more = blocks.put_durably(tier, [5])
        assert blocks.get(tier, more, [5]) == [""]


def test_a_tier_can_be_opened_on_a_read_only_file_system(disk: LoopDisk) -> None:
    blocks = Blocks()
    with opened(config(disk.directory)) as tier:
        slots = blocks.put_durably(tier, [1, 2])
    subprocess.run(["mount", "-o", "remount,ro", str(disk.mount_point)], check=True)
    tier = NvmeTier(config(disk.directory))
    assert set(recovered(tier)) == {blocks.key(1), blocks.key(2)}
    assert tier.health.state == "read_only"
    assert blocks.get(tier, slots, [1, 2]) == ["", ""]
    assert not len(tier.allocate(blocks.bytes, blocks.cut.count, 1).slots)
    subprocess.run(["mount", "-o", "remount,rw", str(disk.mount_point)], check=True)
    assert until(lambda: tier.health.state == "ok")
    blocks.put_durably(tier, [3])
    assert blocks.get(tier, slots, [1, 2]) == ["", ""]
    tier.close()


def test_a_dead_disk_kills_no_node_and_what_was_durable_is_there_when_it_is_back(
    disk: LoopDisk,
) -> None:
    blocks = Blocks()
    with opened(config(disk.directory)) as tier:
        slots = blocks.put_durably(tier, list(range(20)))
        drop_caches()
        disk.lose_power()
        _, ticket = blocks.put(tier, [100])
        assert ticket.wait_durable(30)
        assert ticket.outcomes.tolist() == [Outcome.FAILED]
        assert set(blocks.get(tier, slots, list(range(20)))) == {"io"}
        assert until(lambda: tier.health.state == "failed")
        assert "mount" in tier.health.advice
        assert not len(tier.allocate(blocks.bytes, blocks.cut.count, 1).slots)
        tier.free(slots.slots[:2])
        disk.unmount()  # nothing of the tier holds the dead file system
        assert tier.health.state == "failed"
        disk.mount()
        assert until(lambda: tier.health.state == "ok")
        assert blocks.get(tier, slots, list(range(20))) == ["stale"] * 2 + [""] * 18
        assert until(lambda: not tier.details().limbo)
        blocks.put_durably(tier, [200])
        before = {blocks.key(n) for n in [*range(2, 20), 200]}
    tier = NvmeTier(config(disk.directory))
    assert set(recovered(tier)) == before
    tier.close()


def test_a_cold_page_of_the_index_on_a_dead_disk_is_a_signal_in_the_child_alone(tmp_path: Path) -> None:
    """SIGBUS: the index process looks at a page of its map that the device cannot deliver. ext4 itself still serves
    page faults after its shutdown, so the device is a file on a second file system, and that one is shut down."""
    with loop_disk(tmp_path, 160) as outer, loop_disk(outer.mount_point, 64) as inner:
        kill_device_under_index(outer, inner)


def kill_device_under_index(device: LoopDisk, disk: LoopDisk) -> None:
    blocks = Blocks(4096)
    with opened(config(disk.directory)) as tier:
        slots = blocks.put_durably(tier, [1])
        first = tier._committer.index
        assert first is not None
        first.commit(many_entries(), b"")
        os.kill(first.pid, signal.SIGKILL)  # the next one has touched few pages of its map
        assert until(lambda: tier._committer.index not in (None, first))
        index = tier._committer.index
        assert index is not None
        drop_caches()
        device.lose_power()
        with pytest.raises(IndexGone, match="died of signal 7"):
            read_all(index)
        assert until(lambda: tier.details().index_restarts == 2)
        assert blocks.get(tier, slots, [1]) == ["io"]
        assert until(lambda: tier.health.state == "failed")


def many_entries() -> bytes:
    """An index of some 10 MB."""
    entries = np.zeros(100_000, ENTRY)
    entries["slot"] = np.arange(1 << 20, (1 << 20) + 100_000)
    return seal(entries).tobytes()


def read_all(index: IndexProcess) -> None:
    """Looks at every page of the index."""
    for slot in range(1 << 20, (1 << 20) + 100_000, 20):
        index.get(np.array([slot], ">u4").tobytes())


def test_another_directory_in_the_place_of_the_dead_one_is_not_taken_up(disk: LoopDisk, tmp_path: Path) -> None:
    blocks = Blocks()
    with opened(config(disk.directory)) as tier:
        slots = blocks.put_durably(tier, [1])
        disk.lose_power()
        assert blocks.get(tier, slots, [1]) == ["io"]
        assert until(lambda: tier.health.state == "failed")
        disk.unmount()
        with opened(config(disk.directory)):  # an empty one, on the file system below the mount point
            pass
        assert not until(lambda: tier.health.state != "failed", patience=1.5)
        assert blocks.get(tier, slots, [1]) == ["io"]


INJECTED = """
import os, sys
from pathlib import Path
from tests.unit.nvme.blocks import Blocks, config, opened, until
from kvstore.tiers.nvme.ticket import Outcome
place, switch, calls = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
blocks = Blocks()
with opened(config(place, probe_interval=0.5)) as tier:
    slots = blocks.put_durably(tier, [1, 2, 3])
    switch.touch()
    taken, ticket = blocks.put(tier, [4])
    if calls == "read":
        assert ticket.wait_durable(30)
        assert set(blocks.get(tier, slots, [1, 2, 3])) == {"io"}, "reads must fail"
        assert until(lambda: tier.health.state == "degraded"), tier.health
        assert "READ_IO" in tier.health.causes
    else:
        assert ticket.wait_durable(30)
        assert ticket.outcomes.tolist() == [Outcome.FAILED], ticket.outcomes
        assert until(lambda: tier.health.state in ("degraded", "failed")), tier.health
        assert blocks.get(tier, slots, [1, 2, 3]) == ["", "", ""], "reads go on"
        tier.free(taken.slots)
    print(tier.health, file=sys.stderr)
    switch.unlink()
    assert until(lambda: tier.health.state == "ok"), tier.health
    more = blocks.put_durably(tier, [5, 6])
    assert blocks.get(tier, slots, [1, 2, 3]) + blocks.get(tier, more, [5, 6]) == [""] * 5
print("ok")
"""


INDEX_INJECTED = """
import sys, time
from pathlib import Path
from tests.unit.nvme.blocks import Blocks, config, opened, recovered, until
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.nvme.ticket import Outcome
place, switch, full = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "full"
blocks = Blocks()
with opened(config(place)) as tier:
    slots = blocks.put_durably(tier, [1, 2, 3])
    more = blocks.allocate(tier, 2)
    contents = [blocks.content(n) for n in (4, 5)]
    switch.touch()
    ticket = tier.persist(blocks.entries(0, more, [4, 5], contents), contents)
    tier.free(slots.slots[:1])
    assert until(lambda: {"INDEX_FULL", "INDEX"} & set(tier.health.causes)), tier.health
    print(tier.health, file=sys.stderr)
    assert Outcome.DURABLE not in ticket.outcomes.tolist(), "acknowledged although the index cannot be written"
    assert not len(tier.allocate(blocks.bytes, blocks.cut.count, 1).slots)
    assert blocks.get(tier, slots, [1, 2, 3]) == ["stale", "", ""]
    switch.unlink()
    assert until(lambda: tier.health.state == "ok"), tier.health
    assert ticket.wait_durable(30)
    assert set(ticket.outcomes.tolist()) == ({Outcome.FAILED} if full else {Outcome.DURABLE}), ticket.outcomes
    assert until(lambda: not tier.details().limbo)
tier = NvmeTier(config(place))
assert set(recovered(tier)) == {blocks.key(n) for n in ((2, 3) if full else (2, 3, 4, 5))}
tier.close()
print("ok")
"""


@pytest.mark.parametrize("kind", ["full", "broken"])
def test_an_index_that_cannot_be_written_stops_acknowledgements_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    number = errno.ENOSPC if kind == "full" else errno.EIO
    done = run_injected(tmp_path, INDEX_INJECTED, kind, f"{WRITES},write", "data.mdb", number)
    assert done.stdout.strip() == "ok", done.stderr
    assert os.strerror(number) in done.stderr


WRITES = "pwritev,pwritev64,pwritev2,pwritev64v2,pwrite,pwrite64"
READS = "preadv,preadv64,preadv2,preadv64v2,pread64"


@pytest.mark.parametrize("calls", ["write", "sync", "read"])
def test_injected_io_errors_degrade_the_tier_and_it_recovers(tmp_path: Path, calls: str) -> None:
    names = {"write": WRITES, "sync": "fdatasync,fsync", "read": READS}[calls]
    done = run_injected(tmp_path, INJECTED, calls, names, "segment-", errno.EIO)
    assert done.stdout.strip() == "ok", done.stderr
    assert "Input/output error" in done.stderr


def run_injected(
    place: Path, script: str, argument: str, calls: str, path: str, number: int
) -> subprocess.CompletedProcess[str]:
    """Runs a script below the preloaded library."""
    library, switch = place / "fault.so", place / "on"
    source = Path(__file__).with_name("fault.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    faults = {"FAULT_PATH": path, "FAULT_SWITCH": str(switch), "FAULT_CALLS": calls, "FAULT_ERRNO": str(number)}
    return subprocess.run(
        [sys.executable, "-c", script, str(place / "tier"), str(switch), argument],
        env={**os.environ, "LD_PRELOAD": str(library), **faults},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
