"""What the store says of itself beyond counts: ages, bytes held, bytes that went."""

from __future__ import annotations

import threading
import time

from kvstore.tiers.mover import Move, MoveBounds, Mover, MoveSchedule, Priority
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import ChainSlice
from tests.unit.tiers.stores import TWO, keys_of, opened, put


def move(unit: int, priority: Priority = Priority.DEMOTION) -> Move:
    return Move(unit, TierKind.DRAM, TierKind.NVME, 100, priority)


def test_the_next_move_of_each_priority_tells_since_when_it_waits() -> None:
    schedule = MoveSchedule(MoveBounds())
    assert schedule.next_since(Priority.DEMOTION) is None
    for unit, since in ((1, 5.0), (2, 9.0)):
        one = move(unit)
        one.since = since
        schedule.demote(one)
    assert schedule.next_since(Priority.DEMOTION) == 5.0
    assert schedule.next_since(Priority.READER) is None


def test_a_mover_tells_how_long_and_how_many_may_wait() -> None:
    go = threading.Event()
    mover = Mover(
        lambda moves, report: [go.wait(30), [report(one, "done") for one in moves]], MoveBounds((3, 4, 5), 1, 1, 1)
    )
    try:
        mover.demote([move(1)])
        while mover.waiting()["demotion"]:  # until a worker has it
            time.sleep(0.001)
        mover.demote([move(2)])
        asked = time.monotonic()
        while time.monotonic() < asked + 0.01:
            time.sleep(0.001)
        assert mover.waiting_seconds()["demotion"] >= 0.01
        assert mover.waiting_seconds()["reader"] == 0.0
        assert mover.waiting_max() == {"reader": 3, "prefetch": 4, "demotion": 5}
    finally:
        go.set()
        mover.close()


def test_what_sessions_hold_is_told_apart_with_the_age_of_the_oldest_lease() -> None:
    with opened() as store:
        view, session = store.open_namespace(TWO.canonical()), store.open_session(True)
        keys = keys_of(TWO, (1, 2, 3))
        put(store, session, view, keys[:2])
        assert store.stat().held.oldest_lease == 0.0
        first = store.acquire(session, view.handle, keys[:2])
        began = time.monotonic()
        second = store.acquire(session, view.handle, keys[:1])
        store.reserve(session, view.handle, ChainSlice(keys[2:], keys[1].tobytes(), 2))
        block = sum(part.bytes for part in TWO.parts)
        found = store.stat().held
        assert (found.leased_bytes, found.reserved_bytes) == (3 * block, block)
        while time.monotonic() < began + 0.01:
            time.sleep(0.001)
        assert store.stat().held.oldest_lease >= 0.01
        store.release(session, [first.lease])
        assert 0 < store.stat().held.oldest_lease <= time.monotonic() - began
        store.release(session, [second.lease])
        assert (store.stat().held.leased_bytes, store.stat().held.oldest_lease) == (0, 0.0)


def test_bytes_of_dropped_blocks_are_counted_by_cause() -> None:
    with opened() as store:
        view, session = store.open_namespace(TWO.canonical()), store.open_session(True)
        keys = keys_of(TWO, (1, 2, 3))
        put(store, session, view, keys)
        store.evict(view.handle, keys[1:])
        assert store.stat().counters["dropped_blocks_asked"] == 2
        assert store.stat().counters["dropped_bytes_asked"] == 2 * sum(part.bytes for part in TWO.parts)
