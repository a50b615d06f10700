"""What is read much gains copies, what has cooled loses them where room is short; never one that is owed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.cluster import warmth as warming
from kvstore.cluster.keeper import Keeper
from kvstore.cluster.neighbours import own_room
from kvstore.cluster.pace import Pace
from kvstore.cluster.placement import primaries
from kvstore.cluster.room import Room
from kvstore.cluster.stock import Chain
from kvstore.cluster.warmth import Warmth, marks
from tests.integration.nodes import wait_for
from tests.unit.cluster.copy_fakes import HANDLE, FakeCell, dead, keys_of

READS = 4000  # of one chain: some 90 a second by the half-life


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "STEP", 0.02)
    monkeypatch.setattr(warming, "COOL_EVERY", 0.05)


@contextmanager
def warm(cell: FakeCell, copies: int = 2) -> Iterator[tuple[Warmth, Keeper]]:
    keeper = Keeper(cell, cell, cell, copies)  # type: ignore[arg-type]
    pace = Pace(1 << 30, keeper.spread.stopping, time.monotonic)
    made = Warmth(cell, cell, keeper.view, keeper.spread, pace, keeper.counts, copies)  # type: ignore[arg-type]
    made.start()
    try:
        yield made, keeper
    finally:
        keeper.stop()


def with_beginnings(cell: FakeCell, chain: Chain) -> None:
    """Each of its blocks ends a chain that is here."""
    for blocks in range(1, chain.blocks + 1):
        cell.chains[chain.key(blocks - 1)] = chain.first(blocks)


@given(st.integers(0, 300), st.integers(0, 300))
def test_marks_are_few_and_those_of_pieces_are_those_of_the_whole(first: int, end: int) -> None:
    assert marks(0, first) + marks(first, max(first, end)) == marks(0, max(first, end))
    assert all(first <= mark < end for mark in marks(first, end))
    assert len(marks(0, end)) == end.bit_length()


def test_what_many_read_gains_extra_copies_until_each_is_read_seldom_enough() -> None:
    cell = FakeCell(6)
    me, other = own_room(cell.member), cell.nodes[0]
    rooms = [me, Room(other.number, other.member.node_id, other.member.capacity_bytes, host=other.member.host)]
    number = next(n for n in range(1, 99) if primaries(keys_of(n, 8)[7].tobytes(), rooms, 1)[0] == me)
    chain = cell.put(number, blocks=8)  # whose copies are for this node to make
    with_beginnings(cell, chain)
    cell.tell(other, chain.keys)
    with warm(cell) as (made, keeper):
        for _ in range(READS):
            made.read(HANDLE, chain.keys, 0, 8)
        wait_for(lambda: keeper.counts.all().get("extra_made", 0) >= 1, "an extra copy")
    assert cell.asked
    assert not any(owed for _, _, owed in cell.asked)
    assert {blocks for _, blocks, _ in cell.asked} == {8}  # its beginnings came along


def test_a_prompt_that_many_chains_share_is_what_is_copied() -> None:
    cell = FakeCell(4)
    prompt = keys_of(1, 64)
    whole = cell.put(1, blocks=64)
    with_beginnings(cell, whole)
    with warm(cell, copies=1) as (made, keeper):
        for number in range(READS):
            chain = np.concatenate((prompt, keys_of(1000 + number, 30)))
            made.read(HANDLE, chain, 0, len(chain))
        wait_for(lambda: keeper.counts.all().get("extra_made", 0) >= 1, "an extra copy")
    assert cell.asked[0][1] == 64


def test_what_is_read_seldom_gains_nothing() -> None:
    cell = FakeCell(4)
    with_beginnings(cell, cell.put(1, blocks=8))
    with warm(cell) as (made, _):
        for _ in range(40):
            made.read(HANDLE, keys_of(1, 8), 0, 8)
        time.sleep(0.3)
    assert cell.asked == []


def held_by_all(cell: FakeCell, count: int, unused: float) -> list[Chain]:
    chains = [cell.put(number, unused=unused) for number in range(1, count + 1)]
    for chain in chains:
        for node in cell.nodes:
            cell.tell(node, chain.keys)
            node.has[chain.key(0)] = chain.blocks
    return chains


def kept_here(cell: FakeCell, chain: Chain, copies: int) -> bool:
    rooms = [own_room(cell.member)]
    rooms += [Room(n.number, n.member.node_id, n.member.capacity_bytes, host=n.member.host) for n in cell.nodes]
    return primaries(chain.key(chain.blocks - 1), rooms, copies)[:copies].count(rooms[0]) == 1


def test_where_room_is_short_unused_copies_beyond_those_owed_are_given_up() -> None:
    cell = FakeCell(3)
    cell.full = True
    chains = held_by_all(cell, 12, unused=1000.0)
    mine = [chain for chain in chains if kept_here(cell, chain, 2)]
    with warm(cell) as (_, keeper):
        wait_for(lambda: keeper.counts.all().get("cooled_blocks", 0) >= 10 * (12 - len(mine)), "the drops")
    assert 0 < len(mine) < 12
    assert len(cell.dropped) == 12 - len(mine)
    assert not {chain.key(9) for chain in mine} & set(cell.dropped)


def quiet(cell: FakeCell, seconds: float = 0.4) -> None:
    with warm(cell):
        time.sleep(seconds)
    assert cell.dropped == []


def others_lie(cell: FakeCell) -> None:
    for node in cell.nodes:
        node.has, node.takes = {}, 0  # they evicted them, and their events are late


def others_are_silent(cell: FakeCell) -> None:
    for node in cell.nodes:
        node.does = dead


@pytest.mark.parametrize("trouble", [others_lie, others_are_silent])
def test_nothing_is_given_up_that_others_do_not_say_they_hold(trouble: Callable[[FakeCell], None]) -> None:
    cell = FakeCell(3)
    cell.full = True
    held_by_all(cell, 12, unused=1000.0)
    trouble(cell)
    quiet(cell)


def test_nothing_is_given_up_that_was_used_lately_or_while_there_is_room() -> None:
    cell = FakeCell(3)
    cell.full = True
    held_by_all(cell, 12, unused=1.0)
    quiet(cell)
    cell = FakeCell(3)
    held_by_all(cell, 12, unused=1000.0)
    quiet(cell)
