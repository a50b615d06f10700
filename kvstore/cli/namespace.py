"""kvstore namespace: which there are, and what is done with a whole one."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kvstore.cli.control import TARGET_HELP, TIMEOUT_HELP, control, find_namespace
from kvstore.cli.stat import namespace_dict, namespace_table
from kvstore.core.errors import InvalidArgument
from kvstore.v1 import control_pb2 as pb

app = typer.Typer(pretty_exceptions_enable=False, no_args_is_help=True)

Which = Annotated[str, typer.Argument(help="Root (hex, or its first digits) or model of the namespace.")]
TargetOption = Annotated[str, typer.Option("--target", envvar="KVSTORE_TARGET", help=TARGET_HELP)]
TimeoutOption = Annotated[float, typer.Option("--timeout", help=TIMEOUT_HELP)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback()
def _group() -> None:
    """Namespaces of a node: list, drop, rotate."""


@app.command("list")
def list_(target: TargetOption = "auto", timeout: TimeoutOption = 5.0, as_json: JsonOption = False) -> None:
    """Show the namespaces: blocks, bytes by tier, when each was last used."""
    with control(target, timeout) as stub:
        found = [namespace_dict(one) for one in stub.ListNamespaces(pb.ListNamespacesRequest()).namespaces]
    if as_json:
        typer.echo(json.dumps({"namespaces": found}))
        return
    from rich.console import Console

    Console().print(namespace_table(found))


def _named(namespace: str) -> str:
    """What is done with a whole namespace needs its name: an empty one is a variable that was not set."""
    if not namespace.strip():
        raise InvalidArgument("the name of the namespace is empty", field="namespace")
    return namespace


@app.command()
def drop(
    namespace: Which, target: TargetOption = "auto", timeout: TimeoutOption = 60.0, as_json: JsonOption = False
) -> None:
    """Drop a namespace with all its blocks on the node asked; in a cell the others keep theirs. A client that still
    uses it makes it anew with its next put."""
    with control(target, timeout) as stub:
        info = find_namespace(stub, _named(namespace))
        reply = stub.DropNamespace(pb.DropNamespaceRequest(root=info.root))
    if as_json:
        typer.echo(json.dumps({"root": info.root.hex(), "blocks": reply.blocks, "leased": reply.leased}))
        return
    typer.echo(f"{info.root.hex()} dropped: {reply.blocks} blocks, {reply.leased} of them still leased")


@app.command()
def rotate(
    namespace: Which, target: TargetOption = "auto", timeout: TimeoutOption = 15.0, as_json: JsonOption = False
) -> None:
    """Void all blocks of a namespace on all nodes of the cell, as after new weights; it stays, its generation is one
    higher. The exit status is 1 when some node could not be told: it is told of it as soon as it is back."""
    with control(target, timeout) as stub:
        info = find_namespace(stub, _named(namespace))
        reply = stub.RotateNamespace(pb.RotateNamespaceRequest(root=info.root))
    counts = {"blocks": reply.blocks, "leased": reply.leased, "generation": reply.generation}
    if as_json:
        typer.echo(json.dumps({"root": info.root.hex(), **counts, "unreached": list(reply.unreached)}))
    else:
        typer.echo(
            f"{info.root.hex()} is generation {reply.generation} now: {reply.blocks} blocks dropped here, "
            f"{reply.leased} of them still leased (nobody else finds them)"
        )
    if reply.unreached:
        away = ", ".join(reply.unreached)
        typer.echo(f"not reached: {away}; clients of these nodes may get what is void until they are back", err=True)
        raise typer.Exit(1)
