"""The journal: what it tells, in what order, how little it says and keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from kvstore.core.keys import KeyArray
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers import journal as journal_module
from kvstore.tiers.journal import Batch, Journal, Outrun
from kvstore.tiers.runs import Dropped, Event, Removed, Stored
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import ChainSlice
from tests.unit.tiers import two_tiers
from tests.unit.tiers.stores import HYBRID, MIB, ONE, TWO, fill, keys_of, opened, put

DRAM, NVME = 1 << TierKind.DRAM, 1 << TierKind.NVME
SMALL = NamespaceSpec("small", 4, block_bytes=4096)


def by_hand(store: BlockStore) -> BlockStore:
    """Batches are made when a test says so, by nobody else."""
    store.journal.wake = threading.Event()
    return store


@pytest.fixture
def store() -> Iterator[BlockStore]:
    with opened() as found:
        yield by_hand(found)


def after(journal: Journal, sequence: int) -> list[Batch]:
    """Flushes; all batches past a sequence number."""
    journal.flush()
    found: list[Batch] = []
    while batch := journal.next(found[-1].sequence if found else sequence, 0):
        found.append(batch)
    return found


def told(journal: Journal, sequence: int) -> list[Event]:
    return [event for batch in after(journal, sequence) for event in batch.events]


def chain(length: int, branch: int = 0) -> KeyArray:
    return keys_of(SMALL, tuple(range(branch * 1000, branch * 1000 + length)))


# --- what is told -------------------------------------------------------------------------------------------


def test_nothing_is_noted_while_nobody_watches(store: BlockStore) -> None:
    view, session = store.open_namespace(SMALL.canonical()), store.open_session(False)
    put(store, session, view, chain(20))
    store.evict(view.handle, chain(20)[10:])
    assert (store.journal.on, store.journal._rows, store.journal.sequence) == (False, [], 0)


def test_puts_of_one_window_are_one_run(store: BlockStore) -> None:
    view, session, keys = store.open_namespace(SMALL.canonical()), store.open_session(False), chain(120)
    with store.journal.watching():
        at = store.journal.sequence
        for first in range(0, 120, 10):
            put(store, session, view, keys[: first + 10], first)
        assert told(store.journal, at) == [Stored(SMALL.root, 0, b"", keys.tobytes(), DRAM)]
        assert told(store.journal, at + 1) == []


def test_what_came_and_went_in_one_window_is_not_mentioned(store: BlockStore) -> None:
    view, session = store.open_namespace(SMALL.canonical()), store.open_session(False)
    with store.journal.watching():
        at = store.journal.sequence
        put(store, session, view, chain(4))
        store.evict(view.handle, chain(4)[2:])
        assert told(store.journal, at) == [Stored(SMALL.root, 0, b"", chain(2).tobytes(), DRAM)]


def test_a_block_that_went_and_came_back_is_there(store: BlockStore) -> None:
    """The removal comes first, though the row was noted before."""
    view, session, keys = store.open_namespace(SMALL.canonical()), store.open_session(False), chain(3)
    with store.journal.watching():
        put(store, session, view, keys)
        at = after(store.journal, store.journal.sequence)[-1].sequence
        store.evict(view.handle, keys[1:])
        put(store, session, view, keys, 1)
        removed, stored = told(store.journal, at)
        assert isinstance(removed, Removed)
        assert isinstance(stored, Stored)
        assert {removed.keys[:16], removed.keys[16:]} == {keys[1].tobytes(), keys[2].tobytes()}
        assert (stored.first_block, stored.parent, stored.keys) == (1, keys[0].tobytes(), keys[1:].tobytes())


def test_a_block_is_told_of_when_all_parts_that_a_hit_needs_are_there(store: BlockStore) -> None:
    view, session, keys = store.open_namespace(TWO.canonical()), store.open_session(False), keys_of(TWO, (1, 2))
    with store.journal.watching():
        at = store.journal.sequence
        put(store, session, view, keys, parts=(0,))
        assert told(store.journal, at) == []
        put(store, session, view, keys[:1], parts=(1,))
        assert told(store.journal, at) == [Stored(TWO.root, 0, b"", keys[:1].tobytes(), DRAM)]


def test_a_window_part_is_not_needed(store: BlockStore) -> None:
    view, session, keys = store.open_namespace(HYBRID.canonical()), store.open_session(False), keys_of(HYBRID, (1, 2))
    with store.journal.watching():
        at = store.journal.sequence
        put(store, session, view, keys, parts=(0,))
        assert told(store.journal, at) == [Stored(HYBRID.root, 0, b"", keys.tobytes(), DRAM)]
        put(store, session, view, keys, parts=(1,))
        assert told(store.journal, at + 1) == []


def test_a_block_on_its_way_is_not_told_of(store: BlockStore) -> None:
    view, session, keys = store.open_namespace(SMALL.canonical()), store.open_session(False), chain(3)
    with store.journal.watching():
        at = store.journal.sequence
        reserved = store.reserve(session, view.handle, ChainSlice(keys))
        assert told(store.journal, at) == []
        store.commit(session, reserved.id, fill(store, view, keys, (0,), reserved, 1)[0])
        assert [len(event) for event in told(store.journal, at)] == [3]


def test_a_leased_block_that_is_evicted_is_gone(store: BlockStore) -> None:
    view, session, keys = store.open_namespace(SMALL.canonical()), store.open_session(False), chain(3)
    with store.journal.watching():
        put(store, session, view, keys)
        store.journal.flush()
        at = store.journal.sequence
        assert store.acquire(session, view.handle, keys).lease
        assert store.evict(view.handle, keys[2:]) == (1, 1, 0)
        assert told(store.journal, at) == [Removed(SMALL.root, keys[2].tobytes())]


def test_a_dropped_namespace_is_one_event_and_can_come_back(store: BlockStore) -> None:
    session, keys = store.open_session(False), chain(300)
    with store.journal.watching():
        put(store, session, store.open_namespace(SMALL.canonical()), keys)
        store.journal.flush()
        at = store.journal.sequence
        store.drop_namespace(SMALL.root)
        put(store, session, store.open_namespace(SMALL.canonical()), keys[:2])
        assert told(store.journal, at) == [Dropped(SMALL.root), Stored(SMALL.root, 0, b"", keys[:2].tobytes(), DRAM)]


def test_a_rotated_namespace_is_empty_and_fills_again(store: BlockStore) -> None:
    view, session, keys = store.open_namespace(SMALL.canonical()), store.open_session(False), chain(20)
    with store.journal.watching():
        put(store, session, view, keys)
        store.journal.flush()
        at = store.journal.sequence
        store.rotate_namespace(SMALL.root)
        put(store, session, view, keys[:5])
        assert told(store.journal, at) == [Dropped(SMALL.root), Stored(SMALL.root, 0, b"", keys[:5].tobytes(), DRAM)]


def test_moves_between_tiers_change_the_tiers() -> None:
    """A block that leaves DRAM is on NVMe only, one that is loaded is in both, a dropped one in none."""
    with two_tiers.opened(nvme_write_rule="through") as store:
        view, session, keys = (
            by_hand(store).open_namespace(ONE.canonical()),
            store.open_session(False),
            keys_of(ONE, (1, 2, 3)),
        )
        with store.journal.watching():
            at = store.journal.sequence
            put(store, session, view, keys)
            two_tiers.still(store)
            events = told(store.journal, at)
            assert [(one.tiers, len(one)) for one in events if isinstance(one, Stored)][-1] == (DRAM | NVME, 3)
            at, state = store.journal.sequence, store._state
            assert state.placement
            with state.lock:
                for row in state.index.find(view_id(store), keys).tolist():
                    state.placement.free_dram(row)
            assert told(store.journal, at) == [Stored(ONE.root, 0, b"", keys.tobytes(), NVME, moved=True)]
            found = store.acquire(session, view.handle, keys, deadline=time.monotonic() + 20, whole=True)
            assert found.blocks == 3
            assert told(store.journal, at + 1) == [Stored(ONE.root, 0, b"", keys.tobytes(), DRAM | NVME, moved=True)]
            store.release(session, [found.lease])
            two_tiers.still(store)
            store.evict(view.handle, keys)
            (removed,) = told(store.journal, at + 2)
            assert isinstance(removed, Removed)
            assert len(removed) == 3


def view_id(store: BlockStore) -> int:
    return next(iter(store._state.namespaces)).id


def test_a_block_that_lost_a_needed_part_is_removed() -> None:
    """One part is in DRAM only, the other on NVMe only; the slot there proves damaged."""
    with two_tiers.opened(nvme_write_rule="through") as store:
        view, session, keys = (
            by_hand(store).open_namespace(TWO.canonical()),
            store.open_session(False),
            keys_of(TWO, (1,)),
        )
        with store.journal.watching():
            put(store, session, view, keys, parts=(0,))
            two_tiers.still(store)
            state = store._state
            assert state.placement
            row = int(state.index.find(view_id(store), keys)[0])
            with state.lock:
                state.placement.free_dram(row)
            store._movement.demoter.rule = "off"  # type: ignore[union-attr]
            at = store.journal.sequence
            put(store, session, view, keys, parts=(1,))
            (stored,) = told(store.journal, at)
            assert isinstance(stored, Stored)
            assert stored.tiers == NVME  # where the slowest of its parts is
            assert dict(store.match(view.handle, keys).tiers) == {TierKind.DRAM: 0, TierKind.NVME: 1}
            with state.lock:
                assert state.placement.free_nvme(row)
            assert told(store.journal, at + 1) == [Removed(TWO.root, keys.tobytes())]
            assert store.match(view.handle, keys).blocks == 0


# --- sequence numbers and bounds -----------------------------------------------------------------------------


def test_sequence_numbers_have_no_holes(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "BATCH_KEYS", 16)
    view, session = store.open_namespace(SMALL.canonical()), store.open_session(False)
    with store.journal.watching():
        at = store.journal.sequence
        for branch in range(12):
            put(store, session, view, chain(10, branch))
        batches = after(store.journal, at)
        store.evict(view.handle, np.concatenate([chain(10, branch) for branch in range(0, 12, 2)]))
        batches += after(store.journal, batches[-1].sequence)
    assert [one.sequence for one in batches] == list(range(at + 1, at + 1 + len(batches)))
    assert len(batches) > 6
    assert sum(len(event) for batch in batches for event in batch.events) == 120 + 60


def test_who_falls_behind_the_ring_begins_again(store: BlockStore) -> None:
    view, session = store.open_namespace(SMALL.canonical()), store.open_session(False)
    store.journal.ring_bytes = 4000
    with store.journal.watching():
        at = store.journal.sequence
        for branch in range(20):
            put(store, session, view, chain(10, branch))
            store.journal.flush()
        last = store.journal.sequence
        assert last == at + 20
        assert sum(one.bytes for one in store.journal._ring) <= 4000
        with pytest.raises(Outrun):
            store.journal.next(at, 0)
        kept = [one.sequence for one in store.journal._ring]
        assert kept == list(range(kept[0], last + 1))
        assert [one.sequence for one in after(store.journal, kept[0] - 1)] == kept
        with pytest.raises(Outrun):
            store.journal.next(kept[0] - 2, 0)
        sequence, found = store.journal.snapshot()
        assert (sequence, sum(map(len, found))) == (last, 200)


def test_more_than_can_be_noted_makes_everybody_begin_again(store: BlockStore) -> None:
    view, session = store.open_namespace(SMALL.canonical()), store.open_session(False)
    store.journal.ring_bytes = 32 * 100
    with store.journal.watching():
        at = store.journal.sequence
        put(store, session, view, chain(110))
        put(store, session, view, chain(20, 1))
        assert not store.journal._rows
        store.journal.flush()
        with pytest.raises(Outrun):
            store.journal.next(at, 0)
        sequence, found = store.journal.snapshot()
        assert sum(map(len, found)) == 130
        store.evict(view.handle, chain(20, 1)[5:])
        assert [len(event) for event in told(store.journal, sequence)] == [15]
        put(store, session, view, chain(20, 1), 5)  # in rows that had been noted
        assert [len(event) for event in told(store.journal, sequence + 1)] == [15]


def test_after_a_failure_everybody_begins_again(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    view, session, journal = store.open_namespace(SMALL.canonical()), store.open_session(False), store.journal
    with journal.watching():
        at = journal.sequence
        put(store, session, view, chain(10))
        with monkeypatch.context() as broken:
            broken.setattr(journal_module, "runs", None)
            with pytest.raises(TypeError):
                journal.flush()
        journal.flush()
        with pytest.raises(Outrun):
            journal.next(at, 0)
        sequence, found = journal.snapshot()
        assert sum(map(len, found)) == 10
        store.evict(view.handle, chain(10)[5:])
        assert [len(event) for event in told(journal, sequence)] == [5]


def test_it_goes_on_for_a_while_for_who_comes_back_and_stops_then(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, session, journal = store.open_namespace(SMALL.canonical()), store.open_session(False), store.journal
    with journal.watching():
        at = journal.sequence
    put(store, session, view, chain(5))
    assert journal.step() is not None
    with journal.watching():
        assert [len(event) for event in told(journal, at)] == [5]
    monkeypatch.setattr(journal_module, "LINGER", 0.0)
    assert journal.step() is None
    assert not journal.on
    put(store, session, view, chain(5, 1))
    with journal.watching():
        with pytest.raises(Outrun):
            journal.next(at + 1, 0)
        sequence, found = journal.snapshot()
        assert sum(map(len, found)) == 10
        assert told(journal, sequence) == []


def test_a_snapshot_and_the_events_after_it_make_up_for_what_changes_meanwhile(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_SCAN", 8)
    view, session = store.open_namespace(SMALL.canonical()), store.open_session(False)
    for branch in range(8):
        put(store, session, view, chain(8, branch))
    here: dict[bytes, int] = {}
    with store.journal.watching():
        sequence, found = store.journal.snapshot()
        branches = iter(range(8))
        for run in found:
            here |= {run.keys[at : at + 16]: run.tiers for at in range(0, len(run.keys), 16)}
            if (branch := next(branches, None)) is None:
                continue
            store.evict(view.handle, chain(8, branch)[4:])  # told already
            store.evict(view.handle, chain(8, 7 - branch)[6:])  # not yet, in the first half
            put(store, session, view, chain(8, 20 + branch))
            store.journal.flush()
        assert next(branches, None) is None
        for event in told(store.journal, sequence):
            keys = [event.keys[at : at + 16] for at in range(0, len(event.keys), 16)]  # type: ignore[union-attr]
            for key in keys:
                here.pop(key, None)
                if isinstance(event, Stored):
                    here[key] = event.tiers
    wanted = [chain(4, branch) for branch in range(8)] + [chain(8, 20 + branch) for branch in range(8)]
    assert here == {key.tobytes(): DRAM for keys in wanted for key in keys}


def test_a_waiting_watcher_is_woken(store: BlockStore) -> None:
    with store.journal.watching():
        at = store.journal.sequence
        found: list[Batch | None] = []
        waiter = threading.Thread(target=lambda: found.append(store.journal.next(at, 60.0)))
        waiter.start()
        put(store, store.open_session(False), store.open_namespace(SMALL.canonical()), chain(2))
        store.journal.flush()
        waiter.join(30)
        assert [batch.sequence for batch in found if batch] == [at + 1]


def test_the_room_of_all_tiers_is_told() -> None:
    with two_tiers.opened(dram=8 * MIB, nvme=64 * MIB) as store:
        capacity, free = store.journal.room()
        assert 64 * MIB < capacity <= 72 * MIB
        assert free == capacity
        put(store, store.open_session(False), store.open_namespace(ONE.canonical()), keys_of(ONE, (1, 2)))
        assert store.journal.room()[1] < free
