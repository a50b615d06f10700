"""Nodes come, go and are upgraded under load, and the cell keeps its promises. As in test_faults.py, the checker of
tests/history says so of each call."""

from __future__ import annotations

from pathlib import Path

from kvstore.transport.frame import VERSION
from tests.history import faults
from tests.history.nodes import ROOT
from tests.history.releases import one_lower
from tests.history.run import Options, Run, protocol, running

WARM_UP = 2.0  # seconds of load


def finish(run: Run) -> None:
    faults.finish(run)
    assert [str(violation) for violation in run.check()] == []


def test_a_drained_node_goes_and_nothing_is_lost() -> None:
    with running(Options(seed=2001)) as run:
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
    with running(Options(seed=2002, checkout=older)) as run:
        assert [protocol(one) for one in run.nodes] == [VERSION - 1] * 3
        run.load()  # clients of the older version, which meet nodes of the newer one
        for number, one in enumerate(run.nodes):
            run.client(f"newer{number}", one)  # and those that are ahead of their nodes
        run.breathe(WARM_UP)
        for one in run.nodes:
            run.stop(one)
            one.checkout = ROOT
            run.restart(one)
            assert protocol(one) == VERSION
            run.breathe(1.0)
            run.audit()
            run.await_whole()
        finish(run)
