"""Copies of what is put: what is acknowledged, what is owed, and who is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from kvstore.cluster import keeper as keeping
from kvstore.cluster.keeper import Keeper
from kvstore.cluster.membership import State
from kvstore.cluster.stock import Chain
from tests.integration.nodes import wait_for
from tests.unit.cluster.copy_fakes import HANDLE, FakeCell, dead, full, hung, refusing


@contextmanager
def kept(cell: FakeCell, copies: int = 2) -> Iterator[Keeper]:
    keeper = Keeper(cell, cell, cell, copies)  # type: ignore[arg-type]
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.stop()


def replicated(keeper: Keeper, chain: Chain, seconds: float = 5.0) -> int:
    key = chain.key(chain.blocks - 1)
    return keeper.replicated(HANDLE, key, time.monotonic() + seconds, lambda: True)


@pytest.mark.parametrize("copies", [2, 3, 4])
def test_it_is_true_when_as_many_other_nodes_said_so(copies: int) -> None:
    cell = FakeCell(5)
    with kept(cell, copies) as keeper:
        assert replicated(keeper, cell.put(1)) == 10
    assert sorted(blocks for _, blocks, _ in cell.asked) == [10] * (copies - 1)
    assert len({node for node, _, _ in cell.asked}) == copies - 1


def test_what_the_index_says_is_not_enough() -> None:
    """It lags: the node may have evicted them since."""
    cell = FakeCell(1)
    chain = cell.put(1)
    cell.tell(cell.nodes[0], chain.keys)
    cell.nodes[0].takes = 4
    with kept(cell) as keeper:
        assert replicated(keeper, chain, 0.5) == 4


@pytest.mark.parametrize("trouble", [dead, full])
def test_another_node_is_asked_when_one_takes_no_copy(trouble) -> None:  # type: ignore[no-untyped-def]
    cell = FakeCell(4)
    chain = cell.put(1)
    for node in cell.nodes[:3]:
        node.does = trouble
    with kept(cell) as keeper:
        assert replicated(keeper, chain) == 10
        assert cell.nodes[3].has == {chain.key(0): 10}
        counts = keeper.counts.all()
    assert counts["made"] == 1
    assert counts.get("failed_unavailable" if trouble is dead else "failed_no_space", 0) == len(cell.asked) - 1


def test_a_node_that_refuses_one_chain_takes_others_at_once() -> None:
    cell = FakeCell(1)
    cell.nodes[0].does = refusing
    with kept(cell) as keeper:
        began = time.monotonic()
        assert replicated(keeper, cell.put(1), 60.0) == 0
        cell.nodes[0].does = lambda deadline: None
        assert replicated(keeper, cell.put(2), 60.0) == 10
        assert time.monotonic() - began < 30.0


def test_a_node_that_hangs_costs_its_patience_and_not_the_whole_deadline() -> None:
    cell = FakeCell(2)
    chain = cell.put(1)
    cell.tell(cell.nodes[0], chain.keys[:9])  # it would be first
    cell.nodes[0].does = hung
    with kept(cell) as keeper:
        began = time.monotonic()
        assert replicated(keeper, chain, 30.0) == 10
        assert time.monotonic() - began < 15.0
    assert [node for node, _, _ in cell.asked] == [cell.nodes[0].number, cell.nodes[1].number]


def test_a_node_that_is_alone_is_told_so_at_once() -> None:
    cell = FakeCell(2)
    cell.nodes[0].state, cell.nodes[1].state = State.SUSPECT, State.DRAINING
    with kept(cell) as keeper:
        began = time.monotonic()
        assert replicated(keeper, cell.put(1), 60.0) == 0
        assert time.monotonic() - began < 30.0
    assert cell.asked == []


@pytest.mark.parametrize("loss", ["suspect", "gone", "started anew"])
def test_a_node_that_is_lost_after_it_took_its_copy_does_not_count(loss: str) -> None:
    cell = FakeCell(3)
    chain = cell.put(1)

    def lose(deadline: float) -> None:
        """When the second one is asked."""
        if len(cell.asked) != 2:
            return
        first = next(node for node in cell.nodes if node.number == cell.asked[0][0])
        first.state = {"suspect": State.SUSPECT, "gone": State.GONE}.get(loss, first.state)
        if loss == "started anew":
            first.member = replace(first.member, boot_id=b"c" * 16)
            first.takes, first.has = 0, {}
        time.sleep(0.2)  # the cell hears of it

    for node in cell.nodes:
        node.does = lose
    with kept(cell, copies=3) as keeper:
        assert replicated(keeper, chain) == 10
    assert len({node for node, _, _ in cell.asked}) == 3


def test_too_few_nodes_give_what_is_true_and_the_rest_is_owed() -> None:
    cell = FakeCell(2)
    cell.nodes[0].takes = 3
    chain = cell.put(1)
    with kept(cell, copies=3) as keeper:
        assert replicated(keeper, chain, 0.3) == 3
        assert keeper.counts.all()["unreplicated_blocks"] == 7
        cell.nodes[0].takes = 10
        wait_for(lambda: cell.nodes[0].has[chain.key(0)] == 10, "the copy that is owed")


def test_a_copy_that_comes_in_pieces_goes_on_at_the_same_node() -> None:
    cell = FakeCell(3)
    chain = cell.put(1, blocks=100)
    first: list[int] = []

    def slowly(number: int):  # type: ignore[no-untyped-def]
        def more(deadline: float) -> None:
            first.append(number)
            cell.nodes[number].takes = 20 * len(first)

        return more

    for number, node in enumerate(cell.nodes):
        node.takes, node.does = 0, slowly(number)
    with kept(cell) as keeper:
        assert replicated(keeper, chain) == 100
    assert len(set(first)) == 1


def test_many_who_wait_for_one_chain_have_it_copied_once() -> None:
    cell = FakeCell(1)
    chain, gate = cell.put(1), threading.Event()
    cell.nodes[0].does = lambda deadline: gate.wait(10.0) and None
    with kept(cell) as keeper:
        found: list[int] = []
        threads = [threading.Thread(target=lambda: found.append(replicated(keeper, chain, 20.0))) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_for(lambda: cell.asked, "the copy to begin")
        gate.set()
        for thread in threads:
            thread.join()
    assert found == [10] * 8
    assert len(cell.asked) == 1


def test_who_has_less_time_does_not_make_others_fail() -> None:
    cell = FakeCell(1)
    chain = cell.put(1)
    cell.nodes[0].does = hung
    with kept(cell) as keeper:
        found: list[int] = []
        hasty = threading.Thread(target=lambda: replicated(keeper, chain, 0.3))
        hasty.start()
        wait_for(lambda: cell.asked, "the copy to begin")
        patient = threading.Thread(target=lambda: found.append(replicated(keeper, chain, 30.0)))
        patient.start()
        hasty.join()
        cell.nodes[0].does = lambda deadline: None
        patient.join()
    assert found == [10]


def test_past_the_bound_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "WAITING", 2)
    cell = FakeCell(2)
    gate = threading.Event()
    for node in cell.nodes:
        node.does = lambda deadline: gate.wait(20.0) and None
    with kept(cell) as keeper:
        chains = [cell.put(n) for n in range(3)]
        threads = [threading.Thread(target=replicated, args=(keeper, chain, 20.0)) for chain in chains[:2]]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(cell.asked) == 2, "two to wait")
        assert replicated(keeper, chains[2], 20.0) == 0  # while the others wait
        assert keeper.counts.all()["busy"] == 1
        gate.set()
        for thread in threads:
            thread.join()
        wait_for(lambda: len(cell.asked) == 3, "what was refused to be copied later")


def test_a_chain_that_went_again_is_not_replicated_and_asks_nobody() -> None:
    cell = FakeCell(1)
    with kept(cell) as keeper:
        assert keeper.replicated(HANDLE, b"gone" * 4, None, lambda: True) == 0
    assert cell.asked == []


def test_a_writer_that_is_gone_is_not_waited_for() -> None:
    cell = FakeCell(1)
    cell.nodes[0].does = dead
    chain = cell.put(1)
    with kept(cell) as keeper:
        assert keeper.replicated(HANDLE, chain.key(9), time.monotonic() + 60.0, lambda: not cell.asked) == 0
    assert len(cell.asked) <= 2  # and once more, as it is owed


def test_a_stop_ends_the_wait() -> None:
    cell = FakeCell(1)
    cell.nodes[0].does = dead
    chain = cell.put(1)
    with kept(cell) as keeper:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(replicated(keeper, chain, 60.0)))
        thread.start()
        wait_for(lambda: cell.asked, "the first attempt")
    thread.join(20.0)
    assert found == [0]


# --- owed -----------------------------------------------------------------------------------------------------


def test_what_is_owed_is_copied_once_to_as_many_as_lack_it() -> None:
    cell = FakeCell(3)
    chain = cell.put(1)
    cell.tell(cell.nodes[2], chain.keys)  # a reader's node has fetched it: that is a copy too
    with kept(cell, copies=3) as keeper:
        keeper.owe(HANDLE, chain.key(9), b"", 10)
        assert keeper.owed[:3] == (1, 10, 10_000)
        wait_for(lambda: keeper.counts.all().get("owed_done"), "the copy")
        assert keeper.owed == (0, 0, 0, 0.0)
    assert [owed for _, _, owed in cell.asked] == [True]


def test_what_cannot_be_copied_is_left_to_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.cluster.owed._FIRST_WAIT", 0.001)
    cell = FakeCell(1)
    cell.nodes[0].state = State.SUSPECT
    chain = cell.put(1)
    with kept(cell) as keeper:
        keeper.owe(HANDLE, chain.key(9), b"", 10)
        assert keeper.missed.wait(20.0)
        assert keeper.counts.all()["owed_missed"] == 1


def test_chains_for_which_there_is_no_room_are_left_to_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "OWED", 3)
    cell = FakeCell(1)
    keeper = Keeper(cell, cell, cell, 2)  # type: ignore[arg-type]
    for number in range(5):
        keeper.owe(HANDLE, b"%016d" % number, b"", 1)
    assert (keeper.owed[0], keeper.dropped) == (3, 2)
    assert keeper.missed.is_set()
