"""The mover: urgent first, one move a part, joined, cancelled, expired, bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvstore.core.errors import Busy, Closed
from kvstore.tiers.mover import (
    CANCELLED,
    DONE,
    EXPIRED,
    FAILED,
    Move,
    MoveBounds,
    Mover,
    MoveSchedule,
    MoveTicket,
    Priority,
    Report,
)
from kvstore.tiers.tier import TierKind


def load(unit: int, priority: Priority = Priority.READER, size: int = 10) -> Move:
    return Move(unit, TierKind.NVME, TierKind.DRAM, size, priority)


def demotion(unit: int) -> Move:
    return Move(unit, TierKind.DRAM, TierKind.NVME, 10, Priority.DEMOTION)


def units(batch: Sequence[Move]) -> list[int]:
    return [move.unit for move in batch]


def test_a_waiting_reader_goes_before_prefetch_and_prefetch_before_demotion() -> None:
    schedule = MoveSchedule(MoveBounds(batch_moves=2))
    schedule.demote(demotion(1))
    schedule.request(load(2, Priority.PREFETCH))
    for unit in (3, 4, 5):
        schedule.request(load(unit))
    assert [units(schedule.next_batch(0)[0]) for _ in range(4)] == [[3, 4], [5], [2], [1]]


def test_a_batch_keeps_to_its_bytes() -> None:
    schedule = MoveSchedule(MoveBounds(batch_bytes=25))
    for unit in range(4):
        schedule.request(load(unit, size=10))
    assert [units(schedule.next_batch(0)[0]) for _ in range(2)] == [[0, 1], [2, 3]]


def test_the_last_worker_is_kept_for_a_demotion() -> None:
    schedule = MoveSchedule(MoveBounds(batch_moves=1, workers=2))
    for unit in range(3):
        schedule.request(load(unit))
    schedule.demote(demotion(9))
    assert units(schedule.next_batch(0)[0]) == [0]
    assert units(schedule.next_batch(0)[0]) == [9]
    assert schedule.next_batch(0)[0] == []


def test_loads_never_hold_every_worker_for_the_room_they_wait_for_is_made_by_demotions() -> None:
    schedule = MoveSchedule(MoveBounds(batch_moves=1, workers=3))
    for unit in range(4):
        schedule.request(load(unit))
    assert [units(schedule.next_batch(0)[0]) for _ in range(3)] == [[0], [1], []]
    schedule.demote(demotion(9))  # asked for by the loads under way
    assert units(schedule.next_batch(0)[0]) == [9]
    schedule.batch_finished(Priority.READER)
    assert units(schedule.next_batch(0)[0]) == [2]


def test_a_reader_joins_a_prefetch_and_makes_it_urgent() -> None:
    schedule = MoveSchedule(MoveBounds())
    first = schedule.request(load(1, Priority.PREFETCH), owner="a")
    schedule.request(load(2, Priority.PREFETCH), owner="a")
    second = schedule.request(load(2), owner="b")
    assert len(schedule) == 2
    (batch, _) = schedule.next_batch(0)
    assert units(batch) == [2]
    third = schedule.request(load(2), owner="c")  # joins what is under way
    ended = schedule.finished(batch[0], DONE)
    assert {ticket for ticket, _ in ended} >= {second, third}
    assert first.move is not second.move


def test_a_move_is_dropped_when_its_last_requester_has_gone() -> None:
    schedule = MoveSchedule(MoveBounds())
    schedule.request(load(1), owner="a")
    kept = schedule.request(load(1), owner="b")
    schedule.request(load(2), owner="a")
    ended = schedule.cancel_owner("a")
    assert [outcome for _, outcome in ended] == [CANCELLED, CANCELLED]
    assert units(schedule.next_batch(0)[0]) == [1]
    assert kept.move.tickets == [kept]


def test_a_prefetch_past_its_deadline_is_not_started() -> None:
    schedule = MoveSchedule(MoveBounds())
    late = schedule.request(load(1, Priority.PREFETCH), deadline=5.0)
    schedule.request(load(2, Priority.PREFETCH), deadline=50.0)
    batch, ended = schedule.next_batch(10.0)
    assert units(batch) == [2]
    assert ended == [(late, EXPIRED)]


@pytest.mark.parametrize("end", ["deadline", "cancelled", "gone"])
def test_a_demotion_that_somebody_waited_for_in_vain_is_carried_out_all_the_same(end: str) -> None:
    schedule = MoveSchedule(MoveBounds())
    assert schedule.demote(demotion(1))
    urgent = Move(1, TierKind.DRAM, TierKind.NVME, 10, Priority.READER)
    ticket = schedule.request(urgent, owner="a", deadline=5.0)
    if end == "cancelled":
        schedule.cancel(ticket)
    elif end == "gone":
        schedule.cancel_owner("a")
    batch, ended = schedule.next_batch(10.0)
    assert units(batch) == [1]
    assert ended == ([(ticket, EXPIRED)] if end == "deadline" else [])


def test_queues_are_bounded_each_by_itself() -> None:
    schedule = MoveSchedule(MoveBounds(queued=(1, 1, 1)))
    schedule.request(load(1))
    with pytest.raises(Busy):
        schedule.request(load(2))
    schedule.request(load(1))  # joining takes no place
    schedule.request(load(3, Priority.PREFETCH))
    schedule.demote(demotion(4))
    assert not schedule.demote(demotion(4))
    with pytest.raises(Busy):
        schedule.demote(demotion(5))


class ScheduleModel(RuleBasedStateMachine):
    """Every ticket ends exactly once, with the outcome of its move, and no move runs twice at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = MoveSchedule(MoveBounds(queued=(8, 8, 8), batch_moves=3, workers=2))
        self.open: dict[MoveTicket, str] = {}
        self.running: list[list[Move]] = []
        self.now = 0.0

    def ended(self, pairs: list[tuple[MoveTicket, str]]) -> None:
        for ticket, _ in pairs:
            assert ticket in self.open
            del self.open[ticket]

    @rule(unit=st.integers(0, 5), prefetch=st.booleans(), owner=st.sampled_from("ab"), late=st.booleans())
    def request(self, unit: int, prefetch: bool, owner: str, late: bool) -> None:
        priority = Priority.PREFETCH if prefetch else Priority.READER
        try:
            self.open[self.schedule.request(load(unit, priority), owner, self.now if late else None)] = owner
        except Busy:
            assert self.schedule.waiting(priority) == 8

    @rule(unit=st.integers(0, 5))
    def demote(self, unit: int) -> None:
        self.schedule.demote(demotion(unit))

    @rule(owner=st.sampled_from("ab"))
    def leave(self, owner: str) -> None:
        self.ended(self.schedule.cancel_owner(owner))
        assert owner not in self.open.values()

    @rule()
    def start(self) -> None:
        self.now += 1
        batch, ended = self.schedule.next_batch(self.now)
        self.ended(ended)
        assert not {move.key for move in batch} & {move.key for other in self.running for move in other}
        if batch:
            self.running.append(batch)

    @rule(outcome=st.sampled_from([DONE, FAILED]))
    def finish(self, outcome: str) -> None:
        if self.running:
            batch = self.running.pop(0)
            for move in batch:
                self.ended(self.schedule.finished(move, outcome))
            self.schedule.batch_finished(batch[0].priority)

    @invariant()
    def bounded(self) -> None:
        assert len(self.running) <= 2
        assert all(self.schedule.waiting(priority) <= 8 for priority in Priority)

    def teardown(self) -> None:
        self.ended(self.schedule.clear())
        while self.running:
            self.finish(DONE)
        assert not self.open
        assert not len(self.schedule)


TestScheduleModel = ScheduleModel.TestCase
TestScheduleModel.settings = settings(max_examples=100, deadline=None)


# --- threads --------------------------------------------------------------------------------------------------------


class Hands:
    """Carries out moves when told to."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.done: list[int] = []

    def __call__(self, batch: Sequence[Move], report: Report) -> None:
        self.gate.wait(10)
        for move in batch:
            if move.unit == 13:
                raise RuntimeError("no luck")
            self.done.append(move.unit)
            report(move, DONE)


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def mover(hands: Hands) -> Iterator[Mover]:
    found = Mover(hands, MoveBounds(workers=2, queued=(100, 100, 100)))
    yield found
    hands.gate.set()
    found.close()


def test_requests_end_when_their_moves_do(mover: Mover, hands: Hands) -> None:
    told: list[str] = []
    tickets = mover.request([load(unit) for unit in range(5)])
    tickets[0].on_end(lambda ticket: told.append(ticket.outcome))
    assert tickets[4].wait(0.01) == ""
    hands.gate.set()
    assert {ticket.wait(10) for ticket in tickets} == {DONE}
    assert told == [DONE]
    assert sorted(hands.done) == list(range(5))
    assert mover.outcomes == {("reader", DONE): 5}
    assert mover.moved_bytes == {"reader": 50}


def test_a_failing_move_fails_its_batch_and_nothing_else(mover: Mover, hands: Hands) -> None:
    hands.gate.set()
    (bad,) = mover.request([load(13)])
    assert bad.wait(10) == FAILED
    (good,) = mover.request([load(1)])
    assert good.wait(10) == DONE


def test_a_full_queue_admits_what_fits(mover: Mover, hands: Hands) -> None:
    for unit in (1000, 1001):  # both workers busy
        mover.request([load(unit)])
        deadline = time.monotonic() + 10
        while mover.waiting()["reader"] and time.monotonic() < deadline:
            time.sleep(0.001)
    assert len(mover.request([load(unit) for unit in range(200)])) == 100
    assert mover.demote([demotion(unit) for unit in range(200)]) == 100


def test_close_cancels_what_waits_and_finishes_what_runs(hands: Hands) -> None:
    mover = Mover(hands, MoveBounds(workers=1, batch_moves=1))
    running, waiting = mover.request([load(1), load(2)])
    deadline = time.monotonic() + 10
    while mover.waiting()["reader"] > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    threading.Timer(0.05, hands.gate.set).start()
    mover.close()
    assert (running.outcome, waiting.outcome) == (DONE, CANCELLED)
    with pytest.raises(Closed):
        mover.request([load(3)])


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60))
@settings(max_examples=20, deadline=None)
def test_whatever_is_requested_twice_moves_once_at_a_time(wanted: list[int]) -> None:
    hands = Hands()
    hands.gate.set()
    mover = Mover(hands, MoveBounds(workers=3, batch_moves=4))
    tickets = mover.request([load(unit) for unit in wanted])
    assert {ticket.wait(10) for ticket in tickets} == {DONE}
    mover.close()
    assert set(hands.done) == set(wanted)
