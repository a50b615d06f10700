"""The memory file: where it may lie, who may use it, and that its backed bytes stay within the capacity."""

from __future__ import annotations

import multiprocessing
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvstore.core.errors import ConfigError
from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.tiers.dram import DramTier
from kvstore.tiers.layout import FORMAT, MAGIC, NAMESPACE_BYTES, SUPERBLOCK, Layout
from kvstore.tiers.memfile import MemoryFile, _superblock_crc, lock_path, purge
from kvstore.tiers.memopen import UNFINISHED, orphans
from kvstore.tiers.store import BlockStore
from tests.unit.tiers.stores import MIB, audit, keys_of, opened, put, small

NODE = b"n" * 16


def plan(capacity: int = 16 * MIB, **changes: int):  # type: ignore[no-untyped-def]
    return lambda page: Layout.plan(capacity, page, changes.get("max_sessions", 8), changes.get("segment_bytes", MIB))


@pytest.fixture
def path():  # type: ignore[no-untyped-def]
    found = small().memory_file
    yield found
    found.unlink(missing_ok=True)
    lock_path(found).unlink(missing_ok=True)


@pytest.mark.parametrize("capacity", [4 * MIB, 16 * MIB, 100 * MIB, 1 << 30, 3 << 40])
@pytest.mark.parametrize("page", [4096, 2 * MIB])
def test_regions_follow_each_other_and_segments_are_aligned(capacity: int, page: int) -> None:
    if capacity < 16 * MIB and page > 4096:
        with pytest.raises(ConfigError, match="too small"):
            Layout.plan(capacity, page, 8)
        return
    found = Layout.plan(capacity, page, 8)
    starts = [0, found.namespaces_at, found.sessions_at, found.leases_at, found.segment_table_at, found.headers_at]
    assert starts == sorted(starts)
    assert all(start % page == 0 for start in starts)
    assert found.header_area_at(found.segments) <= found.data_at
    assert found.data_at % found.segment_bytes == 0
    assert found.tables_bytes + found.segments * found.segment_bytes <= capacity


def test_default_segments_are_64_mib_or_at_least_sixteen() -> None:
    assert Layout.plan(64 << 30, 4096, 256).segment_bytes == 64 * MIB
    assert Layout.plan(256 * MIB, 4096, 256).segment_bytes == 16 * MIB
    assert Layout.plan(8 * MIB, 4096, 8).segment_bytes == MIB


def test_a_capacity_too_small_for_the_tables_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"976\.6 KiB is too small"):
        Layout.plan(1_000_000, 4096, 256)
    with pytest.raises(ConfigError, match="power of two"):
        Layout.plan(64 * MIB, 4096, 8, segment_bytes=3 * MIB)


def test_a_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither tmpfs nor hugetlbfs"):
        MemoryFile(tmp_path / "m", NODE, "test", plan())
    assert not (tmp_path / "m").exists()


def test_a_capacity_over_the_free_space_is_refused_with_the_numbers(path: Path) -> None:
    state = os.statvfs(path.parent)
    size = state.f_blocks * state.f_frsize
    with pytest.raises(ConfigError, match=rf"{size * 2} bytes does not fit in /dev/shm: it has {size} bytes"):
        MemoryFile(path, NODE, "test", plan(size * 2, segment_bytes=64 * MIB))


def test_a_file_in_use_by_a_living_node_is_refused(path: Path) -> None:
    file = MemoryFile(path, NODE, "test", plan())
    for attempt in (lambda: MemoryFile(path, NODE, "test", plan()), lambda: purge(path)):
        with pytest.raises(ConfigError, match="in use by a living node"):
            attempt()
    file.close()
    MemoryFile(path, NODE, "test", plan()).close()


def test_the_lock_goes_with_the_process_also_when_a_client_has_a_descriptor(path: Path) -> None:
    def node(ready) -> None:  # type: ignore[no-untyped-def]
        file = MemoryFile(path, NODE, "test", plan())
        ready.send(os.readlink(f"/proc/self/fd/{file.open_writer()}"))
        threading.Event().wait()

    here, there = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=node, args=(there,))
    process.start()
    here.recv()
    client = os.open(path, os.O_RDWR)
    process.kill()
    process.join()
    file = MemoryFile(path, NODE, "test", plan())
    assert not file.fresh
    file.close()
    os.close(client)


def damaged(path: Path, **changes: object) -> None:
    MemoryFile(path, NODE, "test", plan()).close()
    raw = bytearray(path.read_bytes()[: SUPERBLOCK.itemsize])
    block = np.frombuffer(raw, SUPERBLOCK)
    for name, value in changes.items():
        block[name] = value
    if "crc" not in changes:
        block["crc"] = _superblock_crc(bytes(raw))
    with path.open("r+b") as file:
        file.write(raw)


def test_another_format_is_refused_and_purge_removes_it(path: Path) -> None:
    damaged(path, format=FORMAT + 1)
    with pytest.raises(ConfigError, match=f"has format {FORMAT + 1}, this version reads {FORMAT}"):
        MemoryFile(path, NODE, "test", plan())
    assert purge(path)
    assert not path.exists()
    assert not purge(path)


def test_another_nodes_file_and_damaged_or_foreign_ones_are_refused(path: Path) -> None:
    MemoryFile(path, NODE, "test", plan()).close()
    with pytest.raises(ConfigError, match="belongs to node"):
        MemoryFile(path, b"o" * 16, "test", plan())
    damaged(path, crc=1)
    with pytest.raises(ConfigError, match="damaged"):
        MemoryFile(path, NODE, "test", plan())
    path.write_bytes(b"x" * 8192)
    with pytest.raises(ConfigError, match="no memory file"):
        MemoryFile(path, NODE, "test", plan())


def test_a_file_whose_node_died_before_it_was_ready_is_made_anew(path: Path) -> None:
    path.write_bytes(UNFINISHED + bytes(8184))
    file = MemoryFile(path, NODE, "test", plan())
    assert file.fresh
    assert bytes(file.map[: len(MAGIC)]) == MAGIC
    file.close()


@pytest.mark.parametrize("content", [b"mine", bytes(8192), b"root:x:0:0:" * 1000])
def test_a_foreign_file_is_neither_overwritten_nor_removed(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="no memory file of kvstore"):
        MemoryFile(path, NODE, "test", plan())
    with pytest.raises(ConfigError, match=f"{path} is no memory file of kvstore"):
        purge(path)
    assert path.read_bytes() == content
    other = path.with_suffix(".txt")
    path.rename(other)
    with pytest.raises(ConfigError, match="no memory file"):
        purge(other, force=True)
    other.rename(path)
    assert purge(path, force=True)


def test_purge_makes_nothing_and_follows_no_link(path: Path, tmp_path: Path) -> None:
    assert not purge(path)
    assert not path.exists()
    (tmp_path / "target").write_bytes(MAGIC)
    path.symlink_to(tmp_path / "target")
    for attempt in (lambda: MemoryFile(path, NODE, "test", plan()), lambda: purge(path, force=True)):
        with pytest.raises(ConfigError, match="symbolic link"):
            attempt()
    with pytest.raises(ConfigError, match="cannot open"):
        purge(tmp_path, force=True)
    path.unlink()
    lock_path(path).write_bytes(b"foreign")
    MemoryFile(path, NODE, "test", plan()).close()
    assert purge(path)
    assert lock_path(path).read_bytes() == b"foreign"


def test_orphans_are_memory_files_that_no_node_uses(path: Path, tmp_path: Path) -> None:
    file = MemoryFile(path, NODE, "test", plan())
    assert path not in [one.path for one in orphans(path.parent, Path("/own"))]
    file.close()
    (tmp_path / "kvstore-x.mem").write_bytes(b"foreign")
    (tmp_path / "kvstore-y.mem").write_bytes(MAGIC)
    assert [one.path.name for one in orphans(tmp_path, Path("/own"))] == ["kvstore-y.mem"]
    assert orphans(tmp_path, tmp_path / "kvstore-y.mem") == []


def test_another_capacity_starts_empty_and_leaves_the_old_file_to_those_who_map_it(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = MemoryFile(path, NODE, "test", plan())
    descriptor = file.open_reader()
    file.close()
    old = os.fstat(descriptor).st_size
    file = MemoryFile(path, NODE, "test", plan(32 * MIB))
    assert file.fresh
    assert "capacity was 16MiB, now 32MiB" in caplog.text
    assert os.fstat(descriptor).st_size == old
    os.close(descriptor)
    file.close()


def test_descriptors_for_clients_are_separate_and_the_reader_cannot_write(path: Path) -> None:
    file = MemoryFile(path, NODE, "test", plan())
    reader, writer = file.open_reader(), file.open_writer()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(reader, b"x", 0)
    os.pwrite(writer, b"x", file.layout.data_at)
    assert file.map[file.layout.data_at] == ord("x")
    os.close(reader)
    os.close(writer)
    file.close()


def tier(path: Path, capacity: int = 16 * MIB) -> tuple[MemoryFile, DramTier]:
    file = MemoryFile(path, NODE, "test", plan(capacity))
    return file, DramTier(file, threading.Lock())


def test_backed_bytes_stay_within_the_capacity_also_with_many_small_slots(path: Path) -> None:
    file, dram = tier(path)
    while dram.prefault():
        pass
    assert len(dram.allocate(4096, 1, 100_000).slots) > 2_500
    at = file.layout
    for start, size in ((0, at.namespaces_at), (at.sessions_at, at.headers_at - at.sessions_at)):
        file.map[start : start + size] = bytes(file.map[start : start + size])  # every page of the tables
    for number in range(at.max_namespaces):
        file.map[at.namespaces_at + number * NAMESPACE_BYTES] = 0
    assert file.backed_bytes <= 16 * MIB
    assert not dram.growing
    dram.close()
    file.close()


def test_a_part_larger_than_a_segment_is_refused_naming_the_setting() -> None:
    with opened() as store, pytest.raises(Exception, match="raise segment_bytes"):
        store.dram.allocate(2 * MIB, 16, 1)


def test_shared_memory_that_fills_up_gives_fewer_segments_and_no_crash(path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    file, dram = tier(path)
    populate, calls = file.populate, []

    def limited(offset: int, length: int) -> None:
        calls.append(offset)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        populate(offset, length)

    monkeypatch.setattr(file, "populate", limited)
    while dram.prefault():
        pass
    stat = dram.stat()
    assert stat.segments_ready == 3
    assert "No space left" in stat.trouble
    assert "3145728 bytes" in stat.trouble
    dram.close()
    file.close()


def test_generations_rise_each_time_a_slot_is_given_out_also_after_a_restart(path: Path) -> None:
    file, dram = tier(path)
    dram.prefault()
    seen: dict[int, list[int]] = {}
    for turn in range(6):
        slots, generations = dram.allocate(100_000, 2, 10)
        for slot, generation in zip(slots.tolist(), generations.tolist(), strict=True):
            seen.setdefault(slot, []).append(generation)
        if turn == 3:
            dram.close()
            file.close()
            file, dram = tier(path)
            list(dram.recover())
        else:
            dram.free(slots)
    assert all(values == sorted(set(values)) for values in seen.values())
    dram.close()
    file.close()


def test_a_segment_given_to_another_slot_size_keeps_no_header_of_the_old_one(path: Path) -> None:
    file, dram = tier(path, 4 * MIB)
    while dram.prefault():
        pass
    first = dram.allocate(500_000, 8, 99)
    dram.free(first.slots)
    second = dram.allocate(4096, 1, 700)
    assert len(second.slots) == 700
    assert set(second.generations.tolist()).isdisjoint(first.generations.tolist())
    dram.close()
    file.close()
    file, dram = tier(path, 4 * MIB)
    assert list(dram.recover()) == []
    dram.close()
    file.close()


def test_closing_a_store_unmaps_its_memory() -> None:
    config = small()
    BlockStore(config).close()
    assert str(config.memory_file) not in Path("/proc/self/maps").read_text()
    purge(config.memory_file)


def test_headers_that_find_no_memory_take_it_from_a_segment_and_the_store_goes_on() -> None:
    large = NamespaceSpec("large", 4, parts=(PartSpec("0", 250_000),))
    small_blocks = NamespaceSpec("small", 4, parts=(PartSpec("0", 4096),))
    for extra in range(0, 2 * MIB, 100_000):  # whatever is left over beside whole segments
        with opened(capacity=5 * MIB + extra) as store:
            session = store.open_session(False)
            for spec in (large, small_blocks, large):
                view = store.open_namespace(spec.canonical())
                outcomes = [put(store, session, view, keys_of(spec, (number,)))[0][0] for number in range(40)]
                assert set(outcomes) == {1}
            while store._evictor.grow():
                pass
            audit(store)


def test_memory_backed_before_a_restart_is_used_again_before_more_is_taken() -> None:
    config = small(5 * MIB)
    with opened(config) as store:
        while store._evictor.grow():
            pass
        backed = store.stat().tiers[0].backed_bytes
        store.close()
        for _ in range(3):
            again = BlockStore(replace(config, prefault=False))
            assert again.stat().tiers[0].backed_bytes == backed
            while again._evictor.grow():
                assert again.stat().tiers[0].backed_bytes == backed
            again.close()
