"""How long blocks were not used, and what that was of those that had to go."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.errors import UnknownNamespace
from kvstore.core.keys import KeyArray
from kvstore.tiers.eviction.times import _MARKS, Times
from kvstore.tiers.store import BlockStore
from kvstore.tiers.victims import VictimAge
from tests.unit.tiers.stores import MIB, ONE, keys_of, opened, put


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What the store's policies are told."""
    found = Clock()
    for module in ("writing", "matching", "chains", "state"):
        monkeypatch.setattr(f"kvstore.tiers.{module}.time.monotonic", found.monotonic)
    return found


@pytest.fixture(params=["turnscore", "lru"])
def store(request: pytest.FixtureRequest, clock: Clock) -> Iterator[BlockStore]:
    with opened(capacity=16 * MIB, policy=request.param) as found:
        yield found


def chain(branch: int, length: int = 4) -> KeyArray:
    return keys_of(ONE, tuple(range(branch * 1000, branch * 1000 + length)))


def test_a_block_is_unused_since_it_was_put_or_read(store: BlockStore, clock: Clock) -> None:
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    first, second = chain(1), chain(2)
    put(store, session, view, first)
    clock.now += 50
    put(store, session, view, second)
    clock.now += 50
    assert store.chains.unused(view.handle, first[-1].tobytes()) == pytest.approx(100, abs=1.5)
    assert store.chains.unused(view.handle, second[0].tobytes()) == pytest.approx(50, abs=1.5)
    store.release(session, [store.acquire(session, view.handle, first, request_id=1).lease])
    store.learn()
    clock.now += 10
    assert store.chains.unused(view.handle, first[-1].tobytes()) == pytest.approx(10, abs=1.5)
    assert store.chains.unused(view.handle, chain(9)[0].tobytes()) == math.inf
    with pytest.raises(UnknownNamespace):
        store.chains.unused(view.handle + 1, first[0].tobytes())


def test_nothing_has_to_go_while_there_is_room_and_then_it_is_known_how_old_that_is(
    store: BlockStore, clock: Clock
) -> None:
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    put(store, session, view, chain(1))
    assert store.chains.eviction_age() == 0
    for branch in range(2, 100):
        clock.now += 1
        put(store, session, view, chain(branch))
    age = store.chains.eviction_age()
    clock.now += 3600
    assert (store.chains.eviction_age() == 0) == (store.journal.room()[1] > 0.1 * store.journal.room()[0])
    room = store.stat().blocks // 4  # chains that fit: an LRU's victim was put that many seconds ago
    assert room / 2 < age < 2 * room


def test_victims_are_smoothed() -> None:
    age = VictimAge()
    assert age.seconds == 0
    age.note(100.0, 1.0)
    assert age.seconds == 100.0
    age.note(0.0, 2.0)
    assert 90.0 < age.seconds < 100.0
    for _ in range(200):
        age.note(10.0, 3.0)
    assert age.seconds == pytest.approx(10.0, abs=0.1)


@given(st.lists(st.floats(0.01, 5.0), min_size=1, max_size=200))
def test_the_time_of_a_stamp_is_known_about_to_the_second(waits: list[float]) -> None:
    times, now, at = Times(), 0.0, list[float]()
    for stamp, wait in enumerate(waits):
        now += wait
        times.note(stamp, now)
        at.append(now)
    for stamp, true in enumerate(at):
        assert true - 1.0 <= times.of(stamp, now) <= true


def test_marks_stay_few() -> None:
    times = Times()
    for stamp in range(20 * _MARKS):
        times.note(stamp, float(2 * stamp))
        assert len(times._at) < _MARKS
    assert abs(times.of(10 * _MARKS, 0.0) - 20.0 * _MARKS) < 100.0
