"""Faults: each is done to a cell under load, lets the load go on, and is over when it returns. Before it ends, what was
acknowledged has to be found at those nodes that are there and can reach each other.

``FAULTS`` names those that any cell can stand one after the other; ``random_faults`` draws them by the run's seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tests.history.nodes import NetNode
from tests.history.run import GONE, SUSPECT, Run
from tests.history.world import TENANTS

Fault: TypeAlias = "Callable[[Run], None]"


def kill(run: Run) -> None:
    """SIGKILL; the node is started again and has what it had."""
    one = _any(run)
    run.kill(one)
    _without(run, one)
    run.restart(one)
    _after(run)


def reboot(run: Run) -> None:
    """Its machine crashes: memory is lost, the disk stays."""
    one = _any(run)
    run.kill(one, "memory")
    _without(run, one)
    run.restart(one)
    _after(run)


def wipe(run: Run) -> None:
    """The node comes back with an empty disk, as another one."""
    one = _any(run)
    run.kill(one, "disk")
    _without(run, one)
    run.restart(one)
    _after(run)


def kill_for_a_moment(run: Run) -> None:
    """The node is back before anyone calls it gone."""
    one = _any(run)
    run.kill(one)
    run.breathe(run.dice.uniform(0.0, 0.5))
    run.restart(one)
    run.breathe(1.0)
    _after(run)


def pause(run: Run) -> None:
    """SIGSTOP past every time-out; then its old view of the cell must do no harm."""
    one = _any(run)
    run.pause(one)
    run.breathe(SUSPECT + GONE + 1.0)
    run.audit()
    run.resume(one)
    run.breathe(1.0)
    _after(run)


def pause_for_a_moment(run: Run) -> None:
    """SIGSTOP for less than what makes it suspect, and more than a call's patience."""
    one = _any(run)
    run.pause(one)
    run.breathe(run.dice.uniform(0.3, 1.5))
    run.resume(one)
    run.breathe(1.0)
    _after(run)


def isolate(run: Run) -> None:
    """Nothing goes to or from one node; the others agree."""
    one = _any(run)
    run.isolate(one)
    run.breathe(SUSPECT + 1.0)
    run.audit([other for other in run.nodes if other is not one])
    run.heal()
    run.breathe(1.0)
    _after(run)


def cut(run: Run) -> None:
    """Two nodes do not reach each other, the third one reaches both."""
    _cut(run, one_way=False)


def cut_one_way(run: Run) -> None:
    """Packets from one to the other are lost; those back arrive."""
    _cut(run, one_way=True)


def _cut(run: Run, one_way: bool) -> None:
    a, b = run.dice.sample(run.nodes, 2)
    run.cut(a, b, one_way)
    run.breathe(SUSPECT + 1.0)
    run.audit(agree=False)
    run.heal()
    run.breathe(1.0)
    _after(run)


def slow_wires(run: Run) -> None:
    run.spoil(delay=run.dice.uniform(0.005, 0.05), jitter=run.dice.uniform(0.0, 0.02))
    run.breathe(3.0)
    run.audit()
    run.heal()
    _after(run)


def lossy_wires(run: Run) -> None:
    run.spoil(loss=run.dice.uniform(0.005, 0.03), delay=0.001)
    run.breathe(3.0)
    run.heal()
    _after(run)


def etcd_killed(run: Run) -> None:
    """The cell goes on without it, and a node that comes back meanwhile is known again once etcd is."""
    if run.etcd is None:
        return
    run.event("note", detail="etcd killed")
    run.etcd.kill_all()
    run.breathe(SUSPECT + 1.0)
    run.audit()
    run.etcd.start()
    run.event("note", detail="etcd started")
    run.breathe(1.0)
    _after(run)


def client_killed(run: Run) -> None:
    """In the middle of whatever it does; its place is taken by another one."""
    run.dismiss(run.dice.choice(sorted(run.clients)))
    beside = run.dice.choice([*run.nodes, None])
    run.spawned += 1
    run.client(f"later{run.spawned}", beside)
    run.breathe(1.0)


def rotate(run: Run) -> None:
    """New weights: nothing old is read from when it was told."""
    run.rotate(run.dice.choice(TENANTS), _any(run))
    run.breathe(1.0)


def rotate_while_apart(run: Run) -> None:
    """New weights while a node is cut off: it has nothing old any more once it has heard of them."""
    tenant, (one, other) = run.dice.choice(TENANTS), run.dice.sample(run.nodes, 2)
    run.isolate(one)
    run.breathe(run.dice.choice((0.2, SUSPECT + 0.5)))
    run.rotate(tenant, other)
    run.breathe(0.5)
    run.heal()
    run.await_rotated(tenant)
    run.breathe(1.0)
    _after(run)


FAULTS: tuple[Fault, ...] = (
    kill, reboot, wipe, kill_for_a_moment, pause, pause_for_a_moment, isolate, cut, cut_one_way, slow_wires,
    lossy_wires, etcd_killed, client_killed, rotate, rotate_while_apart,
)  # fmt: skip


def random_faults(run: Run, count: int) -> None:
    """So many by the run's seed, then a last look at everything."""
    possible = [fault for fault in FAULTS if fault is not etcd_killed or run.etcd is not None]
    for _ in range(count):
        fault = run.dice.choice(possible)
        run.event("note", detail=fault.__name__)
        run.breathe(run.dice.uniform(0.3, 1.5))
        fault(run)
    finish(run)


def finish(run: Run) -> None:
    """All is quiet: all agree, all is found, all copies are there."""
    run.await_whole()
    run.audit()


def _any(run: Run) -> NetNode:
    return run.dice.choice(run.nodes)


def _without(run: Run, gone: NetNode) -> None:
    """Load and an audit while a node is away; sometimes so long that it is gone for the others."""
    run.breathe(run.dice.choice((0.5, SUSPECT + GONE + 0.5)))
    run.audit([one for one in run.nodes if one is not gone])


def _after(run: Run) -> None:
    """One failure at a time: all copies are there again before the next one."""
    run.await_whole()
