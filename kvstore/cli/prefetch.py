"""kvstore prefetch: brings blocks to memory ahead of their use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kvstore.cli.control import TARGET_HELP, TIMEOUT_HELP, control, find_namespace
from kvstore.cli.tokens import KEYS_HELP, TOKENS_HELP, chain
from kvstore.v1 import control_pb2 as pb

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def prefetch(
    keys: Annotated[str | None, typer.Option(help=KEYS_HELP)] = None,
    tokens_file: Annotated[Path | None, typer.Option(help=TOKENS_HELP)] = None,
    deadline: Annotated[
        float, typer.Option(help="Seconds after which what has not started is dropped; 0: none.")
    ] = 0.0,
    namespace: Annotated[str, typer.Option(help="Root (hex, or its first digits) or model of the namespace.")] = "",
    target: Annotated[str, typer.Option(envvar="KVSTORE_TARGET", help=TARGET_HELP)] = "auto",
    timeout: Annotated[float, typer.Option(help=TIMEOUT_HELP)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Start bringing the blocks of a chain from NVMe and from other nodes to DRAM. Does not wait for them."""
    with control(target, timeout) as stub:
        info = find_namespace(stub, namespace)
        named = chain(info, keys, tokens_file)
        request = pb.PrefetchRequest(root=info.root, keys=named.raw, deadline_ms=int(deadline * 1000))
        reply = stub.Prefetch(request)
    if as_json:
        found = {"started": reply.started, "present": reply.present, "absent": reply.absent}
        typer.echo(json.dumps({**found, "asked": len(named)}))
        return
    where = f"{reply.started} are on their way, {reply.present} were in DRAM already, {reply.absent} are not here"
    typer.echo(f"of {len(named)} blocks {where}")
