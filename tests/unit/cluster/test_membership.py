"""The states of the nodes of a cell, whatever comes in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvstore.cluster.member import Member
from kvstore.cluster.membership import MAX_PEERS, Change, Membership, State

OWN = b"own-own-own-own!"
SUSPECT_AFTER, GONE_AFTER = 3.0, 6.0
ALIVE = (State.LIVE, State.DRAINING)


def member(number: int, boot: int = 0, draining: bool = False) -> Member:
    node_id = OWN if number < 0 else number.to_bytes(16, "big")
    return Member(node_id, boot.to_bytes(16, "big"), "a:1", "a:2", draining=draining)


def cell(*members: Member) -> Membership:
    made = Membership(OWN, SUSPECT_AFTER, GONE_AFTER)
    for one in members:
        made.discovered(one, 0.0)
    return made


A = member(1)


def pass_time(made: Membership, start: float, seconds: float) -> list[Change]:
    """Ticks as they should be."""
    return [change for step in range(int(seconds * 2)) for change in made.tick(start + (step + 1) / 2)]


def test_a_node_is_suspect_until_it_is_heard() -> None:
    made = cell()
    assert made.discovered(A, 0.0) == [Change(A.node_id, None, State.SUSPECT)]
    assert made.heard(A.node_id, A.boot_id, 0.1) == [Change(A.node_id, State.SUSPECT, State.LIVE)]
    assert made.heard(A.node_id, A.boot_id, 0.2) == []


def test_silence_makes_suspect_and_then_gone() -> None:
    made = cell(A)
    made.heard(A.node_id, A.boot_id, 0.0)
    steps = [(change.before, change.after) for change in pass_time(made, 0.0, SUSPECT_AFTER + GONE_AFTER)]
    assert steps == [(State.LIVE, State.SUSPECT), (State.SUSPECT, State.GONE)]


def test_a_gone_node_that_is_heard_again_is_live_again() -> None:
    made = cell(A)
    pass_time(made, 0.0, GONE_AFTER)
    assert made.state(A.node_id) is State.GONE
    assert made.discovered(A, 100.0) == []  # discovery alone is no sign of life
    assert made.heard(A.node_id, A.boot_id, 100.0) == [Change(A.node_id, State.GONE, State.LIVE)]


def test_a_stream_that_breaks_makes_suspect_at_once() -> None:
    made = cell(A)
    made.heard(A.node_id, A.boot_id, 0.0)
    assert made.stream_lost(A.node_id, b"\xff" * 16, 0.1) == []  # of another boot
    assert made.stream_lost(A.node_id, A.boot_id, 0.1) == [Change(A.node_id, State.LIVE, State.SUSPECT)]
    assert pass_time(made, 0.1, GONE_AFTER - 1.0) == []
    assert made.stream_lost(A.node_id, A.boot_id, GONE_AFTER - 0.5) == []  # the time as suspect goes on
    assert [change.after for change in pass_time(made, GONE_AFTER - 0.5, 1.0)] == [State.GONE]


def test_leaving_is_immediate_and_holds_for_that_boot() -> None:
    made = cell(A)
    made.heard(A.node_id, A.boot_id, 0.0)
    assert made.left(A.node_id, A.boot_id, 0.1) == [Change(A.node_id, State.LIVE, State.GONE)]
    assert made.heard(A.node_id, A.boot_id, 0.2) == []  # late
    assert made.discovered(A, 0.3) == []
    assert made.state(A.node_id) is State.GONE
    again = member(1, boot=1)
    assert made.discovered(again, 1.0) == [Change(A.node_id, State.GONE, State.SUSPECT, restarted=True)]


def test_a_new_boot_resets_and_the_old_one_is_over() -> None:
    made = cell(A)
    made.heard(A.node_id, A.boot_id, 0.0)
    again = replace(member(1, boot=1), data_address="b:1")
    assert made.heard(A.node_id, again.boot_id, 0.1) == [Change(A.node_id, State.LIVE, State.LIVE, restarted=True)]
    assert made.discovered(A, 0.2) == []  # discovery lags behind
    assert made.heard(A.node_id, A.boot_id, 0.3) == []
    assert made.left(A.node_id, A.boot_id, 0.4) == []
    made.discovered(again, 0.5)
    assert [peer.member for peer in made.peers()] == [again]
    assert made.state(A.node_id) is State.LIVE


def test_draining_is_shown_while_the_node_is_heard() -> None:
    made = cell(A)
    made.heard(A.node_id, A.boot_id, 0.0)
    drains = member(1, draining=True)
    assert made.discovered(drains, 0.1) == [Change(A.node_id, State.LIVE, State.DRAINING)]
    assert made.stream_lost(A.node_id, A.boot_id, 0.2) == [Change(A.node_id, State.DRAINING, State.SUSPECT)]
    assert made.heard(A.node_id, A.boot_id, 0.3) == [Change(A.node_id, State.SUSPECT, State.DRAINING)]
    assert made.discovered(A, 0.4) == [Change(A.node_id, State.DRAINING, State.LIVE)]


def test_a_pause_of_our_own_is_nobody_elses_death() -> None:
    """Stopped for an hour, then the first thing that happens is a tick."""
    others = [member(number) for number in range(3)]
    made = cell(*others)
    for one in others[:2]:
        made.heard(one.node_id, one.boot_id, 0.0)
    made.stream_lost(others[0].node_id, others[0].boot_id, 0.0)
    assert made.tick(3600.0) == []
    assert [peer.state for peer in made.peers()] == [State.SUSPECT, State.LIVE, State.SUSPECT]
    made.heard(others[1].node_id, others[1].boot_id, 3600.1)
    assert made.tick(3601.0) == []


def test_this_node_and_unknown_ones_are_no_peers() -> None:
    made = cell(member(-1))
    assert made.peers() == ()
    assert made.heard(A.node_id, A.boot_id, 0.0) == []
    assert made.left(A.node_id, A.boot_id, 0.0) == []
    assert made.stream_lost(A.node_id, A.boot_id, 0.0) == []
    assert made.state(A.node_id) is None


def test_a_full_cell_forgets_who_is_gone_longest_and_refuses_when_nobody_is() -> None:
    everybody = [member(number) for number in range(MAX_PEERS)]
    made = cell(*everybody)
    assert made.discovered(member(MAX_PEERS), 0.0) == []
    assert (len(made.peers()), made.refused) == (MAX_PEERS, 1)
    made.left(everybody[7].node_id, everybody[7].boot_id, 0.1)
    made.left(everybody[3].node_id, everybody[3].boot_id, 0.2)
    late = member(MAX_PEERS)
    assert made.discovered(late, 0.3) == [
        Change(everybody[7].node_id, State.GONE, None),
        Change(late.node_id, None, State.SUSPECT),
    ]
    assert len(made.peers()) == MAX_PEERS


def test_a_boot_that_was_only_discovered_ends_no_other() -> None:
    """Discovery catches up with restarts that were long ago, of which this node never heard."""
    made = cell(A)
    now, between = member(1, boot=2), member(1, boot=1)
    made.heard(A.node_id, now.boot_id, 0.0)
    assert made.discovered(between, 0.1) == [Change(A.node_id, State.LIVE, State.SUSPECT, restarted=True)]
    assert made.heard(A.node_id, now.boot_id, 0.2) == [Change(A.node_id, State.SUSPECT, State.LIVE, restarted=True)]
    assert made.discovered(now, 0.3) == []


class Steps:
    """What can really happen to one node, whose boots are 0, 1, 2 ..., and to the messages about it."""

    def __init__(self) -> None:
        self.cell = cell()
        self.boot = 0
        self.heard: list[int] = []
        self.cell.discovered(member(1, 0), 0.0)

    def restarts(self, _: int) -> None:
        self.boot += 1

    def leaves(self, _: int) -> None:
        self.cell.left(A.node_id, member(1, self.boot).boot_id, 0.0)
        self.boot += 1

    def is_discovered(self, lag: int) -> None:
        self.cell.discovered(member(1, max(0, self.boot - lag)), 0.0)

    def falls_silent(self, _: int) -> None:
        pass_time(self.cell, 0.0, 20.0)

    def loses_its_stream(self, _: int) -> None:
        self.cell.stream_lost(A.node_id, member(1, self.boot).boot_id, 0.0)

    def is_heard(self, _: int) -> None:
        self.heard.append(self.boot)
        self.cell.heard(A.node_id, member(1, self.boot).boot_id, 0.0)
        (peer,) = self.cell.peers()
        assert (peer.state, peer.member.boot_id) == (State.LIVE, member(1, self.boot).boot_id)

    def is_heard_late(self, lag: int) -> None:
        """A batch of an earlier stream, after a later one was heard."""
        for late in self.heard[:-1][-lag:]:
            if late != self.heard[-1]:
                assert self.cell.heard(A.node_id, member(1, late).boot_id, 0.0) == []


steps = st.sampled_from([name for name in vars(Steps) if not name.startswith("_")])


@given(st.lists(st.tuples(steps, st.integers(0, 3)), max_size=40))
def test_a_node_that_is_heard_is_live_whatever_was_said_of_it_before(script: list[tuple[str, int]]) -> None:
    node = Steps()
    for name, lag in script:
        getattr(node, name)(lag)


numbers = st.integers(0, 2)
boots = st.integers(0, 3)


class MembershipModel(RuleBasedStateMachine):
    """Beside the machine: when each node's present state began, and what was heard."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = cell()
        self.now = 0.0
        self.states: dict[bytes, State] = {}
        self.since: dict[bytes, float] = {}
        self.boot: dict[bytes, bytes] = {}
        self.heard_boot: dict[bytes, bytes] = {}
        self.over: set[tuple[bytes, bytes]] = set()  # boots after which another was heard, or that have left
        self.draining: dict[bytes, bool] = {}

    def changed(self, changes: list[Change]) -> None:
        for change in changes:
            assert change.after is not None
            assert self.states.get(change.node_id) is change.before
            self.states[change.node_id] = change.after
            if change.restarted or not (change.before in ALIVE and change.after in ALIVE):
                self.since[change.node_id] = self.now

    @rule(number=numbers, boot=boots, draining=st.booleans())
    def discovered(self, number: int, boot: int, draining: bool) -> None:
        one = member(number, boot, draining)
        before = self.states.get(one.node_id)
        changes = self.cell.discovered(one, self.now)
        self.changed(changes)
        after = self.states[one.node_id]
        if before is None:
            self.boot[one.node_id], self.draining[one.node_id] = one.boot_id, draining
            assert after is State.SUSPECT
        elif one.boot_id == self.boot[one.node_id]:
            self.draining[one.node_id] = draining
            assert (after in ALIVE) == (before in ALIVE)
        elif (one.node_id, one.boot_id) in self.over:
            assert changes == []
        else:
            self.boot[one.node_id], self.draining[one.node_id] = one.boot_id, draining
            assert changes == [Change(one.node_id, before, State.SUSPECT, restarted=True)]

    @rule(number=numbers, boot=boots)
    def heard(self, number: int, boot: int) -> None:
        one = member(number, boot)
        known = one.node_id in self.states
        changes = self.cell.heard(one.node_id, one.boot_id, self.now)
        self.changed(changes)
        if not known or (one.node_id, one.boot_id) in self.over:
            assert changes == []
            return
        self.since[one.node_id] = self.now
        if self.heard_boot.setdefault(one.node_id, one.boot_id) != one.boot_id:
            self.over.add((one.node_id, self.heard_boot[one.node_id]))
            self.heard_boot[one.node_id] = one.boot_id
        if one.boot_id != self.boot[one.node_id]:
            self.boot[one.node_id], self.draining[one.node_id] = one.boot_id, False
            assert [change.restarted for change in changes] == [True]
        assert self.states[one.node_id] in ALIVE

    @rule(number=numbers, boot=boots)
    def stream_lost(self, number: int, boot: int) -> None:
        one = member(number, boot)
        before = self.states.get(one.node_id)
        self.changed(self.cell.stream_lost(one.node_id, one.boot_id, self.now))
        if before in ALIVE and self.boot[one.node_id] == one.boot_id:
            assert self.states[one.node_id] is State.SUSPECT
        else:
            assert self.states.get(one.node_id) is before

    @rule(number=numbers, boot=boots)
    def left(self, number: int, boot: int) -> None:
        one = member(number, boot)
        before = self.states.get(one.node_id)
        self.changed(self.cell.left(one.node_id, one.boot_id, self.now))
        if one.boot_id in (self.boot.get(one.node_id), self.heard_boot.get(one.node_id)):
            self.over.add((one.node_id, one.boot_id))
        if before is not None and self.boot[one.node_id] == one.boot_id:
            assert self.states[one.node_id] is State.GONE
        else:
            assert self.states.get(one.node_id) is before

    @rule(quarters=st.integers(1, 5))
    def tick(self, quarters: int) -> None:
        self.now += quarters / 4
        self.ticked()

    @rule(seconds=st.integers(2, 1_000_000))
    def sleep(self, seconds: int) -> None:
        """A pause of this process: at most half of a suspect's term passes, however long it was."""
        self.now += seconds
        step = SUSPECT_AFTER / 2
        self.since = {node_id: since + max(0.0, seconds - step) for node_id, since in self.since.items()}
        self.ticked()

    def ticked(self) -> None:
        due = {
            node_id: State.SUSPECT if state in ALIVE else State.GONE
            for node_id, state in self.states.items()
            if (state in ALIVE and self.now - self.since[node_id] >= SUSPECT_AFTER)
            or (state is State.SUSPECT and self.now - self.since[node_id] >= GONE_AFTER)
        }
        changes = self.cell.tick(self.now)
        assert {change.node_id: change.after for change in changes} == due  # and so never from live to gone
        self.changed(changes)

    @invariant()
    def states_are_those_that_were_told(self) -> None:
        assert {peer.member.node_id: peer.state for peer in self.cell.peers()} == self.states
        assert {peer.member.node_id: peer.member.boot_id for peer in self.cell.peers()} == self.boot

    @invariant()
    def draining_is_what_a_living_node_said_last(self) -> None:
        for node_id, state in self.states.items():
            assert state not in ALIVE or (state is State.DRAINING) == self.draining[node_id]


TestMembershipModel = MembershipModel.TestCase
TestMembershipModel.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("early", [0.0, 1.0, 100.0])
def test_a_clock_reading_of_an_earlier_moment_changes_nothing(early: float) -> None:
    """Two threads may read the clock in one order and call in the other."""
    made = cell(A)
    made.heard(A.node_id, A.boot_id, 100.0)
    made.heard(A.node_id, A.boot_id, early)
    assert made.tick(102.0) == []
    assert made.state(A.node_id) is State.LIVE
