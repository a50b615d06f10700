"""Placement and copies: what holds for every cell, and the decisions one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.cluster.copies import COOL, HOT, MAX_EXTRA, Bandwidth, Heat, extra_wanted, makes, surplus, worth
from kvstore.cluster.placement import Run, Tail, place, primaries, replicas
from kvstore.cluster.rendezvous import ranked
from kvstore.cluster.room import Room
from kvstore.core.errors import InvalidArgument

BLOCK = 1 << 20


def cell(count: int, blocks: int = 1000) -> dict[int, Room]:
    return {node: Room(node, b"%016d" % node, blocks * BLOCK) for node in range(count)}


def key_of(block: int) -> bytes:
    return b"%016d" % block


some_blocks = st.integers(0, 2000)
rooms_strategy = st.lists(
    st.tuples(some_blocks, some_blocks, some_blocks, st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=12
).map(
    lambda facts: {
        node: Room(node, b"%016d" % node, capacity * BLOCK, free * BLOCK, taken * BLOCK, f"h{host}", f"z{zone}", takes)
        for node, (capacity, free, taken, host, zone, takes) in enumerate(facts)
    }
)
tails = st.none() | st.dictionaries(st.integers(0, 12), st.integers(1, 50), min_size=1).map(Tail)


@given(rooms_strategy, st.integers(0, 50), st.integers(0, 3000), tails, st.none() | st.integers(0, 12))
def test_every_block_goes_to_one_node_that_takes_blocks(
    rooms: dict[int, Room], first: int, count: int, tail: Tail | None, here: int | None
) -> None:
    end = first + count
    runs = place(first, end, BLOCK, key_of, rooms, tail, here)
    takers = {node for node, room in rooms.items() if room.takes and room.capacity_bytes}
    assert {run.node for run in runs} <= takers
    if not takers or not count:
        assert runs == []
        return
    assert [(run.first, run.end) for run in runs] == [(first, end)], "a chain is whole where it is"
    if here in takers:
        assert runs == [Run(here, first, end)]
    assert runs == place(first, end, BLOCK, key_of, dict(reversed(rooms.items())), tail, here)


@given(rooms_strategy, st.binary(min_size=16, max_size=16), st.integers(1, 4), st.sets(st.integers(0, 11)))
def test_replicas_share_neither_zone_nor_machine_if_that_can_be(
    rooms: dict[int, Room], key: bytes, copies: int, held: set[int]
) -> None:
    holders = [rooms[node] for node in held if node in rooms]
    chosen = replicas(key, holders, rooms.values(), copies)
    assert not {room.node for room in chosen} & held
    assert all(room.takes and room.capacity_bytes for room in chosen)
    free = [room for room in rooms.values() if room.takes and room.capacity_bytes and room.node not in held]
    assert len(chosen) == min(max(copies - len(holders), 0), len(free))
    for at, room in enumerate(chosen):
        before = [*holders, *chosen[:at]]
        machines = {one.machine for one in before}
        if room.machine in machines:
            assert all(one.machine in machines for one in free if one not in chosen[:at])
        elif room.zone in {one.zone for one in before}:
            others = [one for one in free if one not in chosen[:at] and one.machine not in machines]
            assert all(one.zone in {two.zone for two in before} for one in others)


@given(rooms_strategy, st.binary(min_size=16, max_size=16), st.integers(1, 4))
def test_which_copies_are_owed_does_not_depend_on_who_asks(rooms: dict[int, Room], key: bytes, copies: int) -> None:
    able = list(rooms.values())
    owed = primaries(key, able, copies)
    assert owed == primaries(key, able[::-1], copies)
    assert len(owed) == min(copies, len(able))
    assert len({room.node for room in owed}) == len(owed)


def test_rendezvous_shares_by_weight_and_moves_only_what_it_must() -> None:
    rooms = cell(8)
    rooms[0] = replace(rooms[0], capacity_bytes=3000 * BLOCK)
    first = {key_of(at): ranked(key_of(at), rooms.values())[0].node for at in range(4000)}
    counts = Counter(first.values())
    assert counts[0] == pytest.approx(4000 * 3 / 10, rel=0.1)
    assert all(counts[node] == pytest.approx(400, rel=0.25) for node in range(1, 8))
    fewer = [room for room in rooms.values() if room.node != 3]
    moved = [key for key, node in first.items() if ranked(key, fewer)[0].node != node]
    assert len(moved) == counts[3]


def test_a_chain_stays_with_its_holder_however_long_it_is() -> None:
    rooms = cell(16, blocks=200)
    assert place(40, 70, BLOCK, key_of, rooms, Tail({5: 40})) == [Run(5, 40, 70)]
    assert place(60, 240, BLOCK, key_of, rooms, Tail({5: 60})) == [Run(5, 60, 240)]


def test_of_several_holders_the_one_with_the_most_room_goes_on() -> None:
    rooms = cell(8)
    rooms[2] = replace(rooms[2], taken_bytes=100 * BLOCK)
    assert place(10, 40, BLOCK, key_of, rooms, Tail({2: 10, 6: 10}))[0].node == 6


def test_a_branch_moves_on_from_a_node_that_took_more_than_others() -> None:
    rooms = cell(16)
    rooms[5] = replace(rooms[5], taken_bytes=800 * BLOCK)
    assert place(10, 40, BLOCK, key_of, rooms, Tail({5: 10}))[0].node != 5
    assert place(10, 40, BLOCK, key_of, rooms, Tail({5: 10, 6: 10}))[0].node == 6
    assert place(126, 160, BLOCK, key_of, rooms, Tail({5: 126}))[0].node == 5, "too much would have to be copied"
    for node in rooms:
        rooms[node] = replace(rooms[node], taken_bytes=800 * BLOCK)
    assert place(10, 40, BLOCK, key_of, rooms, Tail({5: 10}))[0].node == 5, "no more than the others"


def test_what_begins_as_many_others_do_is_spread() -> None:
    rooms = cell(16)
    tail, chosen = Tail({5: 20}), set()
    for chain in range(100):
        key = chain.to_bytes(16, "little")
        chosen.add(place(20, 120, BLOCK, lambda _, key=key: key, rooms, tail)[0].node)
    assert len(chosen) > 8
    assert place(25, 125, BLOCK, key_of, rooms, Tail({5: 25}))[0].node == 5


def test_new_chains_go_where_there_is_room() -> None:
    rooms = cell(8)
    for node in range(4):
        rooms[node] = replace(rooms[node], free_bytes=500 * BLOCK)
    chosen = Counter(place(at, at + 1, BLOCK, key_of, rooms)[0].node for at in range(400))
    assert sum(chosen[node] for node in range(4)) > 360  # the others only where none of these was among the first


def test_a_node_that_drains_takes_nothing() -> None:
    rooms = cell(3)
    rooms[1] = replace(rooms[1], takes=False)
    runs = place(0, 3000, BLOCK, key_of, rooms, here=1)
    assert runs
    assert 1 not in {run.node for run in runs}


def test_two_writers_who_place_the_same_new_chain_choose_the_same_nodes() -> None:
    rooms = cell(64)
    assert place(0, 500, BLOCK, key_of, rooms) == place(0, 500, BLOCK, key_of, cell(64))


# --- copies ------------------------------------------------------------------------------------------------


@given(st.floats(0, 1000), st.integers(1, 4), st.integers(0, MAX_EXTRA))
def test_extra_copies_come_and_go_one_by_one_and_settle(rate: float, owed: int, extra: int) -> None:
    assert abs(extra_wanted(rate, owed, extra) - extra) <= 1
    for _ in range(2 * MAX_EXTRA):
        extra = extra_wanted(rate, owed, extra)
    assert 0 <= extra <= MAX_EXTRA
    assert extra_wanted(rate, owed, extra) == extra, "no copy comes and goes and comes"
    each = rate / (owed + extra)
    assert each <= HOT or extra == MAX_EXTRA
    assert each >= COOL or extra == 0


def test_heat_forgets_and_is_bounded() -> None:
    heat = Heat(limit=3, half_life=10.0)
    for second in range(100):
        heat.read(b"often", second)
    assert heat.rate(b"often", 99.0) == pytest.approx(1.0, rel=0.05)
    assert heat.rate(b"often", 109.0) == pytest.approx(0.5, rel=0.05)
    assert heat.rate(b"never", 99.0) == 0.0
    for at in range(3):
        heat.read(b"%d" % at, 100.0)
    assert len(heat) == 3
    assert heat.rate(b"often", 100.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 300)), max_size=60))
def test_bandwidth_is_kept_in_the_long_run(steps: list[tuple[float, int]]) -> None:
    bandwidth, now, moved, largest = Bandwidth(100.0, burst=200, now=0.0), 0.0, 0, 0
    for wait, size in steps:
        now += wait
        if bandwidth.take(size, now):
            moved, largest = moved + size, max(largest, size)
    assert moved <= 100.0 * now + 200 + max(largest - 200, 0) + 1


def test_a_copy_larger_than_a_burst_is_made_on_credit() -> None:
    bandwidth = Bandwidth(100.0, burst=50, now=0.0)
    assert bandwidth.take(300, 0.0)
    assert not bandwidth.take(1, 2.0)
    assert bandwidth.take(1, 2.6)
    with pytest.raises(InvalidArgument, match="above 0"):
        Bandwidth(0.0, 1, 0.0)


@given(rooms_strategy.filter(len), st.integers(0, 50))
def test_each_lost_copy_is_made_again_by_one_holder(rooms: dict[int, Room], block: int) -> None:
    holders = list(rooms.values())
    others = [[room for room in holders if room is not own] for own in holders]
    makers = [own for own, rest in zip(holders, others, strict=True) if makes(own, key_of(block), rest)]
    assert len(makers) == 1


@pytest.mark.parametrize(
    ("size", "idle", "free", "age", "takes"),
    [
        (10, 1e9, 10, 0.0, True),  # there is room
        (11, 0.0, 10, 0.0, False),
        (10, 99.0, 0, 100.0, True),  # it was used later than what goes for it
        (10, 100.0, 0, 100.0, False),
        (10, 101.0, 1 << 40, 100.0, False),  # free, but about to be evicted from
    ],
)
def test_a_lost_copy_is_made_where_it_is_worth_its_room(
    size: int, idle: float, free: int, age: float, takes: bool
) -> None:
    assert worth(size, idle, free, age) is takes


@given(rooms_strategy, st.sets(st.integers(0, 11)), st.integers(1, 3), st.integers(0, 3))
def test_what_is_owed_is_never_surplus(rooms: dict[int, Room], held: set[int], copies: int, extra: int) -> None:
    able = [node for node in held if node in rooms]
    gone = surplus(key_of(7), held, rooms, copies, extra)
    assert len(gone) == max(len(able) - copies - extra, 0)
    assert not set(gone) & {room.node for room in primaries(key_of(7), [rooms[node] for node in able], copies)}
