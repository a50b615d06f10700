"""Nodes come, go and are upgraded under load, and the cell keeps its promises. As in test_faults.py, the checker of
tests/history says so of each call."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvstore.transport.frame import VERSION
from tests.history import faults
from tests.history.looking import protocol
from tests.history.measures import hit_rate, share
from tests.history.nodes import ROOT
from tests.history.releases import one_lower
from tests.history.run import Options, Run, running

pytestmark = pytest.mark.timeout(900)  # many processes: long where others use the machine too

WARM_UP = 2.0  # seconds of load


def finish(run: Run) -> None:
    faults.finish(run)
    assert [str(violation) for violation in run.check()] == []


def test_a_drained_node_goes_and_nothing_is_lost() -> None:
    with running(Options(seed=2001, chains=80)) as run:
        run.load()
        run.breathe(WARM_UP)
        one = run.nodes[1]
        assert "nothing is lost" in run.drain(one)
        run.breathe(1.0)
        run.audit()
        run.replace(one)
        run.audit()
        run.restart(one)
        run.breathe(1.0)
        finish(run)


def test_a_rolling_upgrade_with_mixed_versions(tmp_path: Path) -> None:
    """Nodes and clients of both versions at a time; each node is stopped, and started with the newer one."""
    older = one_lower(tmp_path / "older")
    with running(Options(seed=2002, chains=80, checkout=older)) as run:
        assert [protocol(one) for one in run.nodes] == [VERSION - 1] * 3
        run.load()  # clients of the older version, which meet nodes of the newer one
        run.client("newer", run.nodes[2])  # and one that is ahead of its node
        run.breathe(WARM_UP)
        for one in run.nodes:
            run.stop(one)
            one.checkout = ROOT
            run.restart(one)
            assert protocol(one) == VERSION
            run.breathe(1.0)
            run.audit()
        finish(run)


def test_a_fourth_node_joins_under_load_and_takes_its_share() -> None:
    """The clients are on none of the nodes, so that it is placement that decides where new blocks go."""
    with running(Options(seed=2003, etcd=1, chains=600, network_clients=3), spare=1) as run:
        for number in range(run.options.network_clients):
            run.client(f"network{number}", None)
        run.breathe(WARM_UP)
        before = hit_rate(run, since=0.0)
        joined = time.monotonic()
        fourth = run.add_node()
        run.restart(fourth)
        run.breathe(WARM_UP)
        run.audit()  # whatever is owed is found, at the new node too
        settled = time.monotonic()
        run.breathe(2 * WARM_UP)
        assert hit_rate(run, since=joined) > before - 0.05
        assert share(run, fourth, since=settled) > 0.5 / len(run.nodes)
        finish(run)
