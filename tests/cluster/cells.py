"""Cells of real nodes, each a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstore.cli.cluster import as_dict
from kvstore.cli.control import control
from kvstore.v1 import control_pb2 as pb
from tests.cluster.etcd.servers import free_ports
from tests.integration.nodes import PATIENCE, NodeProcess, node, wait_for

SUSPECT_AFTER = 2.0


@contextlib.contextmanager
def cell(folder: Path, count: int = 3, **settings: object) -> Iterator[list[NodeProcess]]:
    """Nodes that know each other's addresses, and keep them when they are started again."""
    controls = [f"127.0.0.1:{port}" for port in free_ports(count)]
    shared = {"discovery": f"static://{','.join(controls)}", "suspect_after": SUSPECT_AFTER, **settings}
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(node(folder / f"node-{number}", control_address=control, **shared))
            for number, control in enumerate(controls)
        ]
        wait_for(lambda: all(states(one, nodes) == {"live"} for one in nodes), "all nodes to know each other")
        yield nodes


def status(process: NodeProcess) -> Any:
    """What `kvstore cluster status --json` prints."""
    with control(f"grpc://{process.control}", PATIENCE) as stub:
        return as_dict(stub.ClusterStatus(pb.ClusterStatusRequest()))


def peer(asked: NodeProcess, other: NodeProcess) -> Any:
    """What one node says of another."""
    return next(one for one in status(asked)["peers"] if one["node_id"] == other.node_id)


def states(asked: NodeProcess, nodes: list[NodeProcess]) -> set[str]:
    """In which a node sees all others; a word for those that it does not know."""
    known = {one["node_id"]: one["state"] for one in status(asked)["peers"]}
    return {known.get(other.node_id, "unknown") for other in nodes if other is not asked}


def await_state(asked: NodeProcess, other: NodeProcess, state: str) -> None:
    wait_for(lambda: states(asked, [other]) == {state}, f"{other.control} to be {state}")
