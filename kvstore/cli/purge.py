"""kvstore purge: removes the memory file of a stopped node, or the blocks of a running one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvstore.cli.control import TARGET_HELP, TIMEOUT_HELP, control, find_namespace
from kvstore.core.errors import InvalidArgument
from kvstore.node.config import load
from kvstore.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from kvstore.v1.control_pb2_grpc import ControlStub

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def purge(
    blocks: Annotated[bool, typer.Option("--blocks", help="Drop all blocks of the running node at --target.")] = False,
    namespace: Annotated[str, typer.Option(help="With --blocks: only this namespace (root in hex, or model).")] = "",
    target: Annotated[str, typer.Option(envvar="KVSTORE_TARGET", help="With --blocks. " + TARGET_HELP)] = "auto",
    timeout: Annotated[float, typer.Option(help=TIMEOUT_HELP)] = 30.0,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The stopped node's TOML file.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="The stopped node's data directory.")] = None,
    memory_dir: Annotated[str | None, typer.Option(help="The directory of its memory file.")] = None,
    memory_file: Annotated[str | None, typer.Option(help="Its memory file, when the configuration names one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Remove the memory file of a stopped node (its blocks are lost; refused while the node runs).

    With --blocks the blocks of a running node are dropped instead, and the node stays.
    """
    if blocks:
        _blocks(target, timeout, namespace, as_json)
        return
    if namespace:
        raise InvalidArgument("--namespace needs --blocks: a stopped node's memory file goes as a whole")
    _file(config, {"data_dir": data_dir, "memory_dir": memory_dir, "memory_file": memory_file}, as_json)


def _blocks(target: str, timeout: float, namespace: str, as_json: bool) -> None:
    dropped = leased = 0
    with control(target, timeout) as stub:
        known = [find_namespace(stub, namespace)] if namespace else _all(stub)
        for info in known:
            reply = stub.DropNamespace(pb.DropNamespaceRequest(root=info.root))
            dropped, leased = dropped + reply.blocks, leased + reply.leased
    if as_json:
        typer.echo(json.dumps({"namespaces": len(known), "blocks": dropped, "leased": leased}))
        return
    typer.echo(f"{dropped} blocks of {len(known)} namespaces dropped, {leased} of them still leased")


def _all(stub: ControlStub) -> list[pb.NamespaceInfo]:
    return list(stub.ListNamespaces(pb.ListNamespacesRequest()).namespaces)


def _file(config: Path | None, flags: dict[str, object], as_json: bool) -> None:
    from kvstore.server.purge import purge_stopped

    done = purge_stopped(load(config, flags=flags))
    if as_json:
        typer.echo(json.dumps({"removed": done.removed, "memory_file": str(done.path)}))
    elif done.removed:
        typer.echo(f"{done.path} removed")
    else:
        typer.echo(f"nothing to remove: {done.why}")
