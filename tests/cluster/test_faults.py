"""A cell of three nodes that keep two copies, under load from several client processes, keeps its promises whatever
happens to a node, to the wires or to etcd: no wrong byte, no call past its deadline, nothing lost that was
acknowledged, and all copies there again afterwards. The checker of tests/history says so of each call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.history import faults
from tests.history.run import GONE, SUSPECT, Options, Run, running

pytestmark = pytest.mark.timeout(900)  # many processes: long where others use the machine too

WARM_UP = 1.5  # seconds of load before anything happens


class Cells:
    """One cell for all tests, each of which leaves it whole. A test that fails leaves the next one a new cell."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._run: Run | None = None
        self._made = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[Run]:
        """What happens to it in the block is over at its end; then all promises have to be kept."""
        run, self._run = self._run or self._new(), None
        yield run
        faults.finish(run)
        assert [str(violation) for violation in run.check()] == []
        self._run = run

    def _new(self) -> Run:
        self.close()
        self._made += 1
        run = self._stack.enter_context(running(Options(seed=1000 + self._made, etcd=3, chains=80)))
        run.load()
        run.breathe(WARM_UP)
        return run

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def cells() -> Iterator[Cells]:
    made = Cells()
    yield made
    made.close()


@pytest.mark.parametrize("number", range(3))
def test_kill_9_of_each_node(cells: Cells, number: int) -> None:
    with cells.one() as cell:
        one = cell.nodes[number]
        cell.kill(one)
        cell.breathe(0.3)
        cell.audit([other for other in cell.nodes if other is not one])
        if number == 0:
            cell.breathe(SUSPECT + GONE)
            cell.await_whole()  # on the two that are left
        cell.restart(one)
        cell.breathe(0.5)


def test_a_node_restarted_with_its_disk(cells: Cells) -> None:
    with cells.one() as cell:
        faults.reboot(cell)


def test_a_node_restarted_with_an_empty_disk(cells: Cells) -> None:
    with cells.one() as cell:
        faults.wipe(cell)


def test_a_node_stopped_past_every_time_out_and_resumed(cells: Cells) -> None:
    with cells.one() as cell:
        faults.pause(cell)


def test_a_partition_both_ways(cells: Cells) -> None:
    with cells.one() as cell:
        faults.isolate(cell)


def test_two_nodes_that_do_not_reach_each_other(cells: Cells) -> None:
    with cells.one() as cell:
        faults.cut(cell)


def test_a_partition_one_way(cells: Cells) -> None:
    with cells.one() as cell:
        faults.cut_one_way(cell)


def test_latency_and_loss(cells: Cells) -> None:
    with cells.one() as cell:
        cell.spoil(delay=0.02, jitter=0.01, loss=0.01)
        cell.breathe(2.0)
        cell.heal()
        cell.breathe(0.5)


def test_the_leader_of_three_etcd_servers_killed(cells: Cells) -> None:
    with cells.one() as cell:
        assert cell.etcd is not None
        cell.etcd.kill(cell.etcd.leader())
        cell.breathe(1.0)
        one = cell.nodes[0]
        cell.kill(one)
        cell.restart(one)  # and is found by the servers that are left
        cell.audit()
        cell.etcd.start()


def test_all_of_etcd_restarted(cells: Cells) -> None:
    with cells.one() as cell:
        faults.etcd_killed(cell)


def test_a_client_killed_in_the_middle_of_its_calls(cells: Cells) -> None:
    with cells.one() as cell:
        faults.client_killed(cell)


def test_new_weights_while_a_node_is_cut_off(cells: Cells) -> None:
    with cells.one() as cell:
        faults.rotate(cell)
        faults.rotate_while_apart(cell)
