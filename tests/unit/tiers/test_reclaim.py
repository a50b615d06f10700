"""Block sizes change over a node's life: segments change their slot size, what is worth keeping is kept."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.tiers.reclaim import SegmentFacts, batches, choose, trim
from kvstore.tiers.segments import SlotClass
from kvstore.tiers.store import BlockStore
from tests.unit.tiers.stores import MIB, STORED, audit, keys_of, opened, put, read, small

LARGE, SMALL = SlotClass(64, 192), SlotClass(4, 192)
BIG = NamespaceSpec("big", 4, parts=(PartSpec("0", 250_000),))
LITTLE = NamespaceSpec("little", 4, parts=(PartSpec("0", 15_000),))


def segment(at: int, kind: SlotClass = LARGE, used: int = 4, worth: float = 4.0, movable: bool = True) -> SegmentFacts:
    return SegmentFacts(at, kind, 4, used, worth, movable)


# --- the decision ---------------------------------------------------------------------------------------------


def test_the_segment_worth_least_goes() -> None:
    known = [segment(0, worth=4.0), segment(1, worth=1.0), segment(2, worth=9.0)]
    chosen = choose(known, SMALL, {})
    assert chosen is not None
    assert chosen.segment == 1


def test_a_class_does_not_take_segments_that_are_worth_more_than_its_own() -> None:
    assert choose([segment(0, worth=4.0), segment(1, SMALL, worth=1.0)], SMALL, {}) is None
    assert choose([segment(0, worth=4.0), segment(1, SMALL, worth=4.5)], SMALL, {}) is None  # too close: to and fro
    assert choose([segment(0, worth=4.0), segment(1, SMALL, worth=9.0)], SMALL, {}) is not None


def test_what_is_in_use_cannot_be_emptied() -> None:
    assert choose([segment(0, movable=False)], SMALL, {}) is None
    chosen = choose([segment(0, worth=0.1, movable=False), segment(1)], SMALL, {})
    assert chosen is not None
    assert chosen.segment == 1


def test_of_several_that_fit_elsewhere_the_emptiest_is_moved() -> None:
    known = [segment(0, used=3, worth=1.0), segment(1, used=1, worth=2.0), segment(2, used=2, worth=2.0)]
    chosen = choose(known, SMALL, {LARGE: 6})
    assert chosen is not None
    assert chosen.segment == 1


def test_leaves_go_in_order_of_worth_and_parents_only_after_their_children() -> None:
    parents = {1: 0, 2: 1, 3: 0, 0: -1}
    worth = {0: 1.0, 1: 2.0, 2: 9.0, 3: 5.0}
    gone: list[int] = []

    def take(row: int) -> int:
        gone.append(row)
        return 1

    def worth_of(row: int) -> float | None:
        children = {child for child, parent in parents.items() if parent == row}
        return worth[row] if children <= set(gone) else None

    heap = [(5.0, 3), (9.0, 2)]
    assert trim(heap, worth_of, parents.__getitem__, take, 1) == 1
    assert gone == [3]
    assert trim(heap, worth_of, parents.__getitem__, take, 9) == 3
    assert gone == [3, 2, 1, 0]


def test_batches_are_bounded_by_rows_and_bytes() -> None:
    assert list(batches([(1, 5), (2, 5), (3, 50), (4, 1)], 2, 20)) == [[1, 2], [3], [4]]


# --- the store --------------------------------------------------------------------------------------------------


def filled(store: BlockStore, spec: NamespaceSpec, chains: int, blocks: int, start: int = 0):  # type: ignore[no-untyped-def]
    """Puts chains until all were tried; their contents by (key, part)."""
    session, view = store.open_session(False), store.open_namespace(spec.canonical())
    contents = {}
    for at in range(start, start + chains):
        keys = keys_of(spec, tuple(range(at * 1000, at * 1000 + blocks)))
        _, written = put(store, session, view, keys, seed=at + 1)
        contents |= written
    store.close_session(session)
    return contents


def usable(store: BlockStore, spec: NamespaceSpec) -> float:
    """Share of the tier that serves blocks of a namespace's size; most of that has blocks in it."""
    kind = store._state.dram.slot_class(spec.parts[0].bytes, 1)
    segments = [(slots, used) for of, slots, used in store._state.dram.classes().values() if of == kind]
    slots, used = (sum(column) for column in zip(*segments, strict=True))
    assert used >= 0.85 * slots
    return slots * kind.granules * 4096 / store.stat().tiers[0].capacity_bytes


@pytest.mark.parametrize("policy", ["lru", "turnscore"])
@pytest.mark.parametrize("blocks", [1, 40])
def test_after_a_change_of_block_size_twice_the_pool_of_puts_makes_it_usable(policy: str, blocks: int) -> None:
    with opened(small(24 * MIB, policy=policy)) as store:
        filled(store, BIG, 120 // blocks, blocks)
        assert usable(store, BIG) > 0.9
        pool = store.stat().tiers[0].capacity_bytes
        filled(store, LITTLE, 2 * pool // 15_000 // blocks, blocks)
        assert usable(store, LITTLE) >= 0.9
        assert store.stat().counters["reclaimed_segments"] > 0
        audit(store)


def until_moved(store: BlockStore) -> None:
    """Puts small blocks until some of the large ones had to move."""
    for start in range(100):
        if store.stat().counters.get("relocated_parts", 0) >= 3:
            return
        filled(store, LITTLE, 1, 60, start=start)
    pytest.fail("nothing moved")


@pytest.mark.parametrize("policy", ["lru", "turnscore"])
def test_moved_blocks_are_still_there_with_their_bytes(policy: str) -> None:
    with opened(small(24 * MIB, policy=policy)) as store:
        contents = filled(store, BIG, 80, 1)
        view = store.open_namespace(BIG.canonical())
        for at in range(0, 80, 3):  # holes everywhere
            store.evict(view.handle, keys_of(BIG, (at * 1000,)))
        before = store.stat().blocks
        until_moved(store)
        session = store.open_session(False)
        found = 0
        for (key, _), data in contents.items():
            keys = np.frombuffer(key, "<u8").reshape(1, 2)
            got = store.acquire(session, view.handle, keys)
            if got.blocks:
                found += 1
                assert read(store, view, got.offsets) == [data]
            store.release(session, [got.lease])
        assert 0 < found <= before
        audit(store)


def test_with_a_second_tier_the_old_blocks_leave_for_it_and_come_back(tmp_path: Path) -> None:
    config = small(24 * MIB, nvme_dir=tmp_path / "nvme", nvme_capacity_bytes=128 * MIB, nvme_segment_bytes=MIB)
    with opened(config) as store:
        contents = filled(store, BIG, 80, 1)
        for start in range(0, 1200, 60):
            filled(store, LITTLE, 1, 60, start=start)
        assert store.stat().counters["reclaimed_segments"] > 0
        session, view = store.open_session(False), store.open_namespace(BIG.canonical())
        found = 0
        for (key, _), data in contents.items():
            keys = np.frombuffer(key, "<u8").reshape(1, 2)
            got = store.acquire(session, view.handle, keys, deadline=time.monotonic() + 30)
            if got.blocks:
                found += 1
                assert read(store, view, got.offsets) == [data]
            store.release(session, [got.lease])
        assert found > 70


def test_a_segment_with_a_leased_block_stays_and_so_do_the_bytes_under_the_lease() -> None:
    with opened(small(24 * MIB)) as store:
        contents = filled(store, BIG, 80, 1)
        session, view = store.open_session(False), store.open_namespace(BIG.canonical())
        key = keys_of(BIG, (7000,))
        got = store.acquire(session, view.handle, key)
        assert got.blocks == 1
        slot = int(got.offsets[0])
        filled(store, LITTLE, 2 * 24 * MIB // 15_000, 1)
        assert read(store, view, got.offsets) == [contents[key.tobytes(), 0]]
        again = store.acquire(session, view.handle, key)
        assert int(again.offsets[0]) == slot
        store.release(session, [got.lease, again.lease])
        audit(store)


def test_a_damaged_block_is_dropped_when_it_is_moved() -> None:
    with opened(small(24 * MIB)) as store:
        filled(store, BIG, 120, 1)
        view = store.open_namespace(BIG.canonical())
        for at in range(0, 120, 2):
            store.evict(view.handle, keys_of(BIG, (at * 1000,)))
        for segment in store._state.dram.classes():
            for slot in store._state.dram.used_slots(segment).tolist():
                store.dram.place(slot, 250_000)[1234] ^= 1
        for start in range(100):
            filled(store, LITTLE, 1, 60, start=start)
            if store.stat().counters.get("dropped_blocks_checksum"):
                break
        assert store.stat().counters["dropped_blocks_checksum"] > 0
        assert not store.stat().counters.get("relocated_parts", 0)
        audit(store)


def test_moved_blocks_survive_a_restart() -> None:
    config = small(24 * MIB)
    with opened(config) as store:
        contents = filled(store, BIG, 80, 1)
        view = store.open_namespace(BIG.canonical())
        for at in range(0, 80, 3):
            store.evict(view.handle, keys_of(BIG, (at * 1000,)))
        until_moved(store)
        blocks = next(one.blocks for one in store.namespaces() if one.root == BIG.root)
        store.close()
        with opened(config) as again:
            view = again.open_namespace(BIG.canonical())
            assert next(one.blocks for one in again.namespaces() if one.root == BIG.root) == blocks
            session = again.open_session(False)
            for (key, _), data in contents.items():
                got = again.acquire(session, view.handle, np.frombuffer(key, "<u8").reshape(1, 2))
                if got.blocks:
                    assert read(again, view, got.offsets) == [data]
            assert again.stat().counters.get("dropped_blocks_checksum", 0) == 0
            audit(again)
    assert STORED
