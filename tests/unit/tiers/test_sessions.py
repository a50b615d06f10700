"""Sessions: what they hold comes back when they can touch it no more, and not before."""

from __future__ import annotations

import fcntl
import os
import time

import numpy as np
import pytest

from kvstore.core.errors import Busy
from kvstore.tiers.memfile import purge
from kvstore.tiers.sessions import Session, SessionTable
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import ChainSlice
from tests.unit.tiers.stores import ONE, ProcessLock, audit, content, fill, keys_of, opened, put, read, small


def table(store: BlockStore) -> SessionTable:
    return store._state.holdings.table


def until(condition) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_node_sees_a_clients_lock_also_in_its_own_process() -> None:
    with opened() as store:
        session = store.open_session(True)
        assert not store.session_locked(session)
        fd = os.open(f"{store.config.memory_file}.lock", os.O_RDONLY)
        fcntl.lockf(fd, fcntl.LOCK_SH, 1, session.index)
        assert store.session_locked(session)
        os.close(fd)
        assert not store.session_locked(session)


def test_there_are_at_most_max_sessions_and_tokens_differ() -> None:
    with opened() as store:
        sessions = [store.open_session(bool(number % 2)) for number in range(8)]
        assert len({session.token for session in sessions}) == len({session.index for session in sessions}) == 8
        with pytest.raises(Busy, match="max_sessions is 8"):
            store.open_session(False)
        store.close_session(sessions[3])
        assert store.open_session(True).index == sessions[3].index


def test_what_a_shared_memory_session_may_touch_stands_in_the_file_and_is_cleared() -> None:
    with opened() as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(True)
        keys = keys_of(ONE, (1, 2))
        reserved = store.reserve(session, view.handle, ChainSlice(keys))
        slots = sorted(offset // 4096 for offset in reserved.offsets.tolist())
        assert sorted(table(store).permitted(session.index).tolist()) == slots
        sums, _ = fill(store, view, keys, (0,), reserved, 1)
        store.commit(session, reserved.id, sums)
        assert not len(table(store).permitted(session.index))
        found = store.acquire(session, view.handle, keys)
        assert sorted(table(store).permitted(session.index).tolist()) == slots
        store.release(session, [found.lease])
        assert not len(table(store).permitted(session.index))


def test_positions_in_the_lease_table_grow_to_its_length_and_come_back() -> None:
    session = Session(0, True, "", 1000)
    taken = [session.take_positions(100, 1000) for _ in range(10)]
    assert sorted(np.concatenate(taken).tolist()) == list(range(1000))
    for one in taken[:5]:
        session.give_positions(one)
    assert sorted(session.take_positions(500, 1000).tolist()) == sorted(np.concatenate(taken[:5]).tolist())


def test_a_network_session_gives_everything_back_at_once() -> None:
    with opened() as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        put(store, session, view, keys_of(ONE, (1, 2)))
        store.acquire(session, view.handle, keys_of(ONE, (1, 2)))
        store.reserve(session, view.handle, ChainSlice(keys_of(ONE, (3,))))
        store.close_session(session)
        store.close_session(session)
        stat = store.stat()
        assert (stat.sessions, stat.leases, stat.reservations, stat.leased_blocks, stat.writing) == (0, 0, 0, 0, 0)
        audit(store)


def test_a_writer_that_ended_but_lives_keeps_its_slots_until_it_dies() -> None:
    with opened() as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(True)
        process = ProcessLock(store, session)
        keys = keys_of(ONE, (1, 2))
        reserved = store.reserve(session, view.handle, ChainSlice(keys))
        store.close_session(session)
        time.sleep(0.1)
        assert store.stat().tiers[0].slots_used == 2
        other = store.open_session(True)
        assert other.index != session.index
        put(store, other, view, keys_of(ONE, (3, 4)))
        for offset in reserved.offsets.tolist():
            store.dram.writable(offset, 100_000)[:] = content(99, 100_000)
        found = store.acquire(other, view.handle, keys_of(ONE, (3, 4)))
        assert found.offsets.tolist() != reserved.offsets.tolist()
        process.die()
        until(lambda: store.stat().tiers[0].slots_used == 2)
        assert store.stat().sessions == 1
        audit(store)


def test_leases_and_reservations_of_a_living_process_outlive_the_node() -> None:
    config = small()
    with opened(config) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(True, "reader")
        process = ProcessLock(store, session)
        keys = keys_of(ONE, (1, 2))
        _, written = put(store, session, view, keys)
        leased = store.acquire(session, view.handle, keys)
        reserved = store.reserve(session, view.handle, ChainSlice(keys_of(ONE, (3,))))
        dead = store.open_session(True, "dead")
        store.acquire(dead, view.handle, keys[:1])
        store.close()
        again = BlockStore(config)
        try:
            stat = again.stat()
            assert (stat.blocks, stat.sessions, stat.orphan_sessions, stat.leased_blocks) == (2, 0, 1, 2)
            assert stat.tiers[0].slots_used == 3
            view = again.open_namespace(ONE.canonical())
            mine = again.open_session(True)
            assert mine.index != session.index
            found = again.acquire(mine, view.handle, keys)  # what it holds is served to others
            assert found.offsets.tolist() == leased.offsets.tolist()
            again.release(mine, [found.lease])
            again.evict(view.handle, keys)
            for number in range(1000, 1100):
                put(again, mine, view, keys_of(ONE, (number,)))
            again.dram.writable(int(reserved.offsets[0]), 100_000)[:] = content(77, 100_000)
            assert read(again, view, leased.offsets) == list(written.values())
            audit(again)
            process.die()
            until(lambda: again.stat().orphan_sessions == 0)
            audit(again)
        finally:
            again.close()
    purge(config.memory_file)


def test_a_byte_that_some_process_holds_is_not_given_to_another_session() -> None:
    with opened() as store:
        first = store.open_session(True)
        process = ProcessLock(store, first)
        store.close_session(first)
        others = [store.open_session(True) for _ in range(7)]
        assert first.index not in {session.index for session in others}
        process.die()
        until(lambda: store.stat().sessions == 7)
        assert store.open_session(True).index == first.index
