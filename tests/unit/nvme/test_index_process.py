"""The index lives in a child process: its death degrades the tier, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore.tiers.nvme.format import ENTRY, seal
from kvstore.tiers.nvme.index import IndexFailed, IndexGone, IndexProcess, Meta
from kvstore.tiers.nvme.index_process import errno_of
from kvstore.tiers.nvme.index_wire import NAMESPACES
from kvstore.tiers.nvme.tier import NvmeTier
from tests.unit.nvme.blocks import Blocks, config, opened, recovered, until


@pytest.fixture
def index(tmp_path: Path) -> Iterator[IndexProcess]:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    process = IndexProcess(tmp_path / "index", lock)
    yield process
    process.close()
    os.close(lock)


def packed(start: int, stop: int) -> bytes:
    entries = np.zeros(stop - start, ENTRY)
    entries["slot"] = np.arange(start, stop)
    return seal(entries).tobytes()


def test_entries_come_back_in_slot_order(index: IndexProcess) -> None:
    index.commit(packed(256, 600) + packed(0, 256), b"")
    index.commit(b"", np.array([5, 7, 99_999], ">u4").tobytes())
    found = np.frombuffer(b"".join(index.scan()), ENTRY)["slot"].tolist()
    assert found == [n for n in range(600) if n not in (5, 7)]
    some = np.frombuffer(index.get(np.array([6, 7, 8], ">u4").tobytes()), ENTRY)["slot"].tolist()
    assert some == [6, 8]


def test_the_map_grows_by_itself(index: IndexProcess) -> None:
    before = index.hello.map_bytes
    status = index.commit(packed(0, 400_000), b"")
    assert status.entries == 400_000
    assert status.map_bytes > before
    assert sum(len(batch) for batch in index.scan()) == 400_000 * ENTRY.itemsize


def test_small_databases_keep_and_remove(index: IndexProcess) -> None:
    index.commit(b"", b"", [Meta(NAMESPACES, b"a", b"1"), Meta(NAMESPACES, b"b", b"2")])
    index.commit(b"", b"", [Meta(NAMESPACES, b"a", b"")])
    assert index.metas(NAMESPACES) == {b"b": b"2"}


def test_commits_stay_within_the_space_that_is_reserved_for_them(index: IndexProcess) -> None:
    from kvstore.tiers.nvme.keeper import INDEX_BASE, INDEX_PER_SLOT

    slots, rng = 50_000, np.random.default_rng(3)
    reserved = index.reserve(INDEX_BASE + INDEX_PER_SLOT * slots).file_bytes
    index.commit(packed(0, slots), b"")
    for _ in range(60):  # a full tier where one random slot in fifty is replaced at each commit
        chosen = rng.choice(slots, 1000, replace=False).astype(np.uint32)
        index.commit(b"", chosen.astype(">u4").tobytes())
        entries = np.zeros(1000, ENTRY)
        entries["slot"] = np.sort(chosen)
        status = index.commit(seal(entries).tobytes(), b"")
    assert status.entries == slots
    assert status.file_bytes == reserved


def test_a_dead_process_is_told_from_a_failed_request(index: IndexProcess) -> None:
    os.kill(index.pid, signal.SIGKILL)
    with pytest.raises(IndexGone, match="signal 9"):
        index.commit(packed(0, 1), b"")


def test_a_stopped_process_is_given_up_on(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    process = IndexProcess(tmp_path / "index", lock, timeout=1.0)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(IndexGone, match="did not answer"):
        process.ping()
    process.kill()
    assert not process.alive
    os.close(lock)


def test_a_damaged_index_file_is_an_error_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "data.mdb").write_bytes(b"\xff" * 65_536)
    with pytest.raises(OSError, match="index cannot be read"), opened(config(tmp_path)):
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_the_errno_of_an_index_error_is_found_in_its_text(number: int) -> None:
    assert errno_of(RuntimeError(f"mdb_txn_commit: {os.strerror(number)}")) == number
    assert IndexFailed(number, "x").errno == number


def test_reads_go_on_while_the_index_process_is_dead_and_writes_wait_for_it(tmp_path: Path) -> None:
    blocks = Blocks()
    with opened(config(tmp_path)) as tier:
        slots = blocks.put_durably(tier, [1, 2])
        more = blocks.allocate(tier, 2)
        pid = tier._committer.index.pid  # type: ignore[union-attr]
        os.kill(pid, signal.SIGSTOP)  # what is written now waits for the commit
        contents = [blocks.content(n) for n in (3, 4)]
        ticket = tier.persist(blocks.entries(0, more, [3, 4], contents), contents)
        assert ticket.wait_written(30)
        os.kill(pid, signal.SIGKILL)
        assert blocks.get(tier, slots, [1, 2]) == ["", ""]
        assert ticket.wait_durable(30)
        assert ticket.durable
        assert tier.details().index_restarts == 1
        assert until(lambda: tier.health.state == "ok")
    tier = NvmeTier(config(tmp_path))
    assert set(recovered(tier)) == {blocks.key(n) for n in (1, 2, 3, 4)}
    tier.close()


def test_a_tier_whose_index_keeps_dying_stops_writes_says_so_and_recovers(tmp_path: Path) -> None:
    blocks = Blocks()
    with opened(config(tmp_path)) as tier:
        slots = blocks.put_durably(tier, [1, 2])
        broken = tmp_path / "index.away"
        (tmp_path / "index").rename(broken)  # the next process finds something that is no index
        (tmp_path / "index").write_text("no directory")
        os.kill(tier._committer.index.pid, signal.SIGKILL)  # type: ignore[union-attr]
        assert until(lambda: tier.health.state == "degraded" and "INDEX" in tier.health.causes)
        assert "index" in tier.health.advice
        assert not len(tier.allocate(blocks.bytes, blocks.cut.count, 1).slots)
        assert blocks.get(tier, slots, [1, 2]) == ["", ""]
        tier.free(slots.slots[:1])
        (tmp_path / "index").unlink()
        broken.rename(tmp_path / "index")
        assert until(lambda: tier.health.state == "ok")
        assert until(lambda: not tier.details().limbo)
        blocks.put_durably(tier, [3])
    tier = NvmeTier(config(tmp_path))
    assert set(recovered(tier)) == {blocks.key(2), blocks.key(3)}
    tier.close()


def test_the_index_process_dies_with_its_node(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from tests.unit.nvme.blocks import config, opened
        with opened(config(Path({str(tmp_path)!r}))) as tier:
            print(tier._committer.index.pid, flush=True)
            time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        pid = int(node.stdout.readline())
        os.kill(pid, 0)
        node.kill()
    assert until(lambda: not os.path.exists(f"/proc/{pid}"))
    with opened(config(tmp_path)) as tier:  # the lock is free again
        assert tier.health.state == "ok"
