"""kvstore purge: removes the memory file of a stopped node, or the blocks of a running one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvstore.cli.control import TARGET_HELP, TIMEOUT_HELP, control, find_namespace
from kvstore.core.errors import InvalidArgument
from kvstore.node.config import NodeConfig, load
from kvstore.node.units import show_size
from kvstore.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from kvstore.v1.control_pb2_grpc import ControlStub

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def purge(
    context: typer.Context,
    blocks: Annotated[bool, typer.Option("--blocks", help="Drop all blocks of the running node at --target.")] = False,
    namespace: Annotated[str, typer.Option(help="With --blocks: only this namespace (root in hex, or model).")] = "",
    target: Annotated[str, typer.Option(envvar="KVSTORE_TARGET", help="With --blocks. " + TARGET_HELP)] = "auto",
    timeout: Annotated[float, typer.Option(help=TIMEOUT_HELP)] = 30.0,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The stopped node's TOML file.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="The stopped node's data directory.")] = None,
    memory_dir: Annotated[str | None, typer.Option(help="The directory of its memory file.")] = None,
    memory_file: Annotated[str | None, typer.Option(help="Its memory file, when the configuration names one.")] = None,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Remove the memory files of former nodes in the memory directory instead.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also remove a damaged memory file (NAME.mem, on tmpfs or hugetlbfs).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Remove the memory file of a stopped node (its blocks are lost; refused while the node runs).

    With --blocks the blocks of a running node are dropped instead, and the node stays.
    """
    flags: dict[str, object] = {"data_dir": data_dir, "memory_dir": memory_dir, "memory_file": memory_file}
    if blocks:
        _refuse("--blocks", {**flags, "config": config, "orphans": orphans, "force": force})
        _blocks(target, timeout, namespace, as_json)
        return
    if namespace:
        raise InvalidArgument("--namespace needs --blocks: a stopped node's memory file goes as a whole")
    for name in ("target", "timeout"):
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE":
            raise InvalidArgument(f"--{name} needs --blocks: without it the memory file of a stopped node is removed")
    if orphans:
        _refuse("--orphans", {"memory_file": memory_file, "force": force})
        _orphans(load(config, flags=flags), as_json)
        return
    _file(load(config, flags=flags), force, as_json)


def _refuse(option: str, others: dict[str, object]) -> None:
    """Raises InvalidArgument for options that would have no effect."""
    given = ["--" + name.replace("_", "-") for name, value in others.items() if value]
    if given:
        raise InvalidArgument(f"{option} cannot be combined with {', '.join(given)}", field=given[0])


def _orphans(config: NodeConfig, as_json: bool) -> None:
    from kvstore.server.purge import purge_orphans

    gone = purge_orphans(config)
    if as_json:
        typer.echo(json.dumps({"removed": [str(one.path) for one in gone], "bytes": sum(one.bytes for one in gone)}))
        return
    for one in gone:
        typer.echo(f"{one.path} removed ({show_size(one.bytes)})")
    if not gone:
        typer.echo(f"nothing to remove: no memory files of former nodes in {config.memory_dir}")


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


def _file(config: NodeConfig, force: bool, as_json: bool) -> None:
    from kvstore.server.purge import purge_stopped

    done = purge_stopped(config, force)
    if as_json:
        typer.echo(json.dumps({"removed": done.removed, "memory_file": str(done.path)}))
    elif done.removed:
        typer.echo(f"{done.path} removed")
    else:
        typer.echo(f"nothing to remove: {done.why}")
