"""Copies that were lost are made again: which, where, in which order, and how fast."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvstore.cluster import mender as mending
from kvstore.cluster.keeper import Keeper
from kvstore.cluster.membership import State
from kvstore.cluster.mender import Mender
from kvstore.cluster.pace import BURST, Pace
from tests.integration.nodes import wait_for
from tests.unit.cluster.copy_fakes import BLOCK, CAPACITY, FakeCell


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("FIRST", 0.0), ("SETTLED", 0.05), ("EVERY", 0.1), ("_STEP", 0.01)):
        monkeypatch.setattr(mending, name, seconds)


@contextmanager
def mended(cell: FakeCell, copies: int = 2, rate: int = 1 << 30) -> Iterator[Keeper]:
    keeper = Keeper(cell, cell, cell, copies)  # type: ignore[arg-type]
    pace = Pace(rate, keeper.spread.stopping, time.monotonic)
    mender = Mender(cell, cell, keeper.view, keeper.spread, pace, keeper.counts, copies, keeper.missed)  # type: ignore[arg-type]
    mender.start()
    try:
        yield keeper
    finally:
        keeper.stop()


def looks(keeper: Keeper, more: int = 2) -> None:
    """Waits for some looks from now on."""
    now = keeper.counts.all().get("looks", 0)
    wait_for(lambda: keeper.counts.all().get("looks", 0) >= now + more, "looks")


def test_sole_copies_come_first_and_then_what_was_used_last() -> None:
    cell = FakeCell(3)
    chains = [cell.put(number, unused=number) for number in range(6)]
    for number in (0, 3):
        cell.tell(cell.nodes[0], chains[number].keys)
    cell.index.stored(cell.nodes[1].number, b"r" * 16, 0, chains[5].keys, 1)
    order: list[int] = []
    for node in cell.nodes:
        node.does = lambda deadline: None
    copied = cell.copy

    def noted(target, canonical, root, keys, owed, deadline):  # type: ignore[no-untyped-def]
        order.append(int(keys[0, 0]))
        return copied(target, canonical, root, keys, owed, deadline)

    cell.copy = noted  # type: ignore[method-assign]
    with mended(cell, copies=3) as keeper:
        looks(keeper)
    sole = [number for number in order if number in (1, 2, 4)]
    assert sole == [1, 1, 2, 2, 4, 4]
    assert order[:6] == sole
    assert set(order[6:]) <= {0, 3, 5}  # those that this node is to copy, and not another holder


def test_what_has_its_copies_is_left_alone_also_while_a_holder_is_suspect() -> None:
    cell = FakeCell(2)
    chain = cell.put(1)
    cell.tell(cell.nodes[0], chain.keys)
    cell.nodes[0].state = State.SUSPECT
    with mended(cell) as keeper:
        looks(keeper)
        assert cell.asked == []
        cell.nodes[0].state = State.GONE
        wait_for(lambda: cell.nodes[1].has, "the copy")


def test_of_several_holders_one_makes_the_copy() -> None:
    makers = []
    for own in range(3):
        cell = FakeCell(4)
        ids = [cell.member, *(node.member for node in cell.nodes)]
        ids[0], ids[own] = ids[own], ids[0]  # this node is another one of the three holders
        cell.member = ids[0]
        cell.index = type(cell.index)(1000)
        for node, member in zip(cell.nodes, ids[1:], strict=True):
            node.member, node.number = member, cell.index.add_node(member.node_id)
        chain = cell.put(1)
        holding = {bytes([n]) * 16 for n in range(3)} - {cell.member.node_id}
        for node in cell.nodes:
            if node.member.node_id in holding:
                cell.tell(node, chain.keys)
        with mended(cell, copies=4) as keeper:
            looks(keeper)
        makers.append(bool(cell.asked))
    assert makers.count(True) == 1


@pytest.mark.parametrize(
    ("free", "age", "unused", "copied"),
    [(CAPACITY, 0.0, 1e6, True), (9 * BLOCK, 0.0, 0.0, False), (0, 100.0, 50.0, True), (CAPACITY, 100.0, 150.0, False)],
)
def test_a_copy_is_made_where_it_is_worth_its_room(free: int, age: float, unused: float, copied: bool) -> None:
    cell = FakeCell(1)
    cell.nodes[0].free, cell.nodes[0].age = free, age
    cell.put(1, unused=unused)
    with mended(cell) as keeper:
        looks(keeper)
    assert bool(cell.asked) is copied


def test_the_bandwidth_is_kept_within_a_long_chain_too() -> None:
    cell = FakeCell(1)
    chain, rate = cell.put(1, blocks=600), 200 * BLOCK
    with mended(cell, rate=rate) as keeper:
        began = time.monotonic()
        wait_for(lambda: cell.nodes[0].has.get(chain.key(0)) == 600, "the copy")
        took = time.monotonic() - began
        assert len(cell.asked) >= 600 // 50
        assert keeper.counts.all()["bytes"] == 600 * BLOCK
    assert rate * took * 1.1 + rate * BURST >= 600 * BLOCK


def test_nothing_is_looked_for_before_it_is_known_what_live_nodes_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = FakeCell(1)
    cell.put(1)
    peers = cell.peers
    known = threading.Event()
    cell.peers = lambda: tuple(  # type: ignore[method-assign]
        type(peer)(peer.member, peer.state, 0, peer.free_bytes, 0.0 if known.is_set() else 60.0, "", peer.number)
        for peer in peers()
    )
    with mended(cell) as keeper:
        time.sleep(0.3)
        assert not keeper.counts.all().get("looks")
        known.set()
        wait_for(lambda: cell.asked, "the copy")


def test_chains_that_were_given_up_are_looked_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mending, "EVERY", 3600.0)
    cell = FakeCell(1)
    with mended(cell) as keeper:
        looks(keeper, 1)
        cell.put(1)
        keeper.missed.set()
        wait_for(lambda: cell.nodes[0].has, "the copy")
