"""kvstore dev-cluster: a whole cell on this machine, for trying things."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from kvstore.cli.dev_nodes import DevNode
from kvstore.core.errors import ConfigError, InvalidArgument, Unavailable
from kvstore.node.units import parse_discovery, parse_size

app = typer.Typer(pretty_exceptions_enable=False)
_STEP = 10  # ports from one node to the next
_MOST = 64
_START = 120.0  # seconds for all nodes to listen
_GRACE = 30.0


@app.command()
def dev_cluster(
    nodes: Annotated[int, typer.Option(help="How many nodes.", min=1, max=_MOST)] = 3,
    base_port: Annotated[
        int,
        typer.Option(help="Data port of the first node; its control plane and HTTP follow, the next node is 10 on."),
    ] = 7100,
    capacity: Annotated[str, typer.Option(help="Memory of each node.")] = "256MiB",
    replicas: Annotated[int, typer.Option(help="How many nodes are to hold each block.", min=1, max=8)] = 1,
    nvme: Annotated[str, typer.Option(help="Give each node an NVMe tier of this size, too.", show_default=False)] = "",
    etcd: Annotated[
        str, typer.Option(help="Find each other by etcd://HOST:PORT/CELL instead of a fixed list.", show_default=False)
    ] = "",
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Keep the nodes' files here, for the next start.", show_default=False)
    ] = None,
) -> int:
    """Run a cell of several nodes on this machine until Ctrl-C."""
    if replicas > nodes:
        raise InvalidArgument(f"--replicas {replicas} are more than the {nodes} nodes", field="replicas")
    if not 0 < base_port <= 65_535 - _STEP * nodes:
        raise InvalidArgument(f"--base-port {base_port} leaves no room for {nodes} nodes", field="base_port")
    discovery = etcd or "static://" + ",".join(f"127.0.0.1:{base_port + _STEP * n + 1}" for n in range(nodes))
    _check(discovery, capacity, nvme or capacity)
    interrupted = _Interrupted()
    home = directory or Path(tempfile.mkdtemp(prefix="kvstore-cell-"))
    cell: list[DevNode] = []
    try:
        for n in range(nodes):
            cell.append(DevNode(n, home / f"node-{n}", base_port + _STEP * n, capacity, discovery, replicas, nvme))
        if _await_start(cell, interrupted):
            _tell(cell)
            return _watch(cell, interrupted)
        return 0
    finally:
        _end(cell)
        if directory is None:
            for node in cell:
                node.purge()
            shutil.rmtree(home, ignore_errors=True)


def _check(discovery: str, *sizes: str) -> None:
    try:
        parse_discovery(discovery)
        for size in sizes:
            parse_size(size)
    except ValueError as error:
        raise ConfigError(str(error)) from None


class _Interrupted:
    """Whether the first signal has come. A second one changes nothing: the nodes are being stopped."""

    def __init__(self) -> None:
        self.yes = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: setattr(self, "yes", True))


def _await_start(cell: list[DevNode], interrupted: _Interrupted) -> bool:
    """False: it was interrupted."""
    end = time.monotonic() + _START
    for node in cell:
        while not node.serves():
            if interrupted.yes:
                return False
            if node.ended is not None:
                raise Unavailable(f"node {node.number} did not start:\n{node.last_words()}", key="dev-cluster")
            if time.monotonic() > end:
                raise Unavailable(f"node {node.number} does not listen after {_START:g} s", key="dev-cluster")
            time.sleep(0.05)
    return True


def _tell(cell: list[DevNode]) -> None:
    for node in cell:
        addresses = f"data {node.data}  control {node.control}  http {node.http}"
        typer.echo(f"node {node.number}: pid {node.pid}  {addresses}  log {node.log}")
    typer.echo("clients: kv://" + ",".join(node.data for node in cell))
    typer.echo(f"the cell: kvstore cluster status --target kv://{cell[0].data}")
    typer.echo("Ctrl-C ends it")


def _watch(cell: list[DevNode], interrupted: _Interrupted) -> int:
    """Until Ctrl-C, or until no node is left. A node that ends is told of, as it may have been killed to try that."""
    running = list(cell)
    while not interrupted.yes:
        for node in [node for node in running if node.ended is not None]:
            running.remove(node)
            typer.echo(f"node {node.number} ended ({node.ended})")
        if not running:
            return 1
        time.sleep(0.1)
    return 0


def _end(cell: list[DevNode]) -> None:
    for node in cell:
        node.stop()
    end = time.monotonic() + _GRACE
    for node in cell:
        node.await_end(max(0.0, end - time.monotonic()))
