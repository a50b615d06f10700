"""kvstore cluster: the cell of a node as that node sees it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from kvstore.cli.cluster_moves import drain, migrate, replicate, warm
from kvstore.cli.control import TARGET_HELP, TIMEOUT_HELP, control
from kvstore.node.units import show_size
from kvstore.v1 import control_pb2 as pb

app = typer.Typer(pretty_exceptions_enable=False, no_args_is_help=True)

_MEMBER = ("data_address", "control_address", "host", "zone", "version", "capacity_bytes", "draining")
_PEER = ("state", "blocks", "free_bytes", "lag_seconds", "trouble")
_STATUS = ("discovery", "problem", "index_blocks", "index_max_blocks", "index_bytes", "index_dropped")


@app.callback()
def _group() -> None:
    """The cell that a node is part of."""


for _command in (replicate, migrate, drain, warm):
    app.command()(_command)


@app.command()
def status(
    target: Annotated[str, typer.Option("--target", envvar="KVSTORE_TARGET", help=TARGET_HELP)] = "auto",
    timeout: Annotated[float, typer.Option("--timeout", help=TIMEOUT_HELP)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the nodes of the cell and their states, as the node asked sees them."""
    with control(target, timeout) as stub:
        value = as_dict(stub.ClusterStatus(pb.ClusterStatusRequest()))
    if as_json:
        typer.echo(json.dumps(value))
        return
    _print(value)


def as_dict(reply: pb.ClusterStatusReply) -> dict[str, Any]:
    """A ClusterStatusReply with ids in hex."""
    return {
        "node": _member(reply.node),
        "peers": [{**_member(peer.member), **{name: getattr(peer, name) for name in _PEER}} for peer in reply.peers],
        **{name: getattr(reply, name) for name in _STATUS},
        "unanswered": list(reply.unanswered),
    }


def _member(member: pb.ClusterMember) -> dict[str, Any]:
    ids = {"node_id": member.node_id.hex(), "boot_id": member.boot_id.hex()}
    return {**ids, **{name: getattr(member, name) for name in _MEMBER}}


def _print(value: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for name in ("node", "state", "control", "host, zone"):
        table.add_column(name, overflow="fold")
    for name in ("blocks", "capacity", "free", "lag"):
        table.add_column(name, justify="right", no_wrap=True)
    own = value["node"]
    table.add_row(own["node_id"][:8], "asked", *_places(own), "", show_size(own["capacity_bytes"]), "", "")
    for peer in value["peers"]:
        followed = peer["state"] != "gone"
        sizes = (show_size(peer["capacity_bytes"]), show_size(peer["free_bytes"]) if followed else "")
        lag = f"{peer['lag_seconds']:.1f} s" if followed else ""
        table.add_row(peer["node_id"][:8], peer["state"], *_places(peer), str(peer["blocks"]), *sizes, lag)
    console = Console()
    console.print(table)
    share = value["index_blocks"] / max(1, value["index_max_blocks"])
    dropped = f", {value['index_dropped']} not noted for want of room" if value["index_dropped"] else ""
    console.print(
        f"found by {value['discovery']}; {value['index_blocks']} blocks of other nodes known ({share:.1%} of the "
        f"index{dropped})",
        highlight=False,
    )
    for peer in value["peers"]:
        if peer["trouble"]:
            console.print(f"{peer['node_id'][:8]}: {peer['trouble']}", highlight=False)
    for text in filter(None, (value["problem"], *value["unanswered"])):
        console.print(f"discovery: {text}", highlight=False)


def _places(member: dict[str, Any]) -> tuple[str, str]:
    return member["control_address"], ", ".join(filter(None, (member["host"], member["zone"])))
