"""kvstore evict: drops blocks by key."""

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
def evict(
    keys: Annotated[str | None, typer.Option(help=KEYS_HELP.replace(" from block 0", ""))] = None,
    tokens_file: Annotated[Path | None, typer.Option(help=TOKENS_HELP)] = None,
    namespace: Annotated[str, typer.Option(help="Root (hex, or its first digits) or model of the namespace.")] = "",
    target: Annotated[str, typer.Option(envvar="KVSTORE_TARGET", help=TARGET_HELP)] = "auto",
    timeout: Annotated[float, typer.Option(help=TIMEOUT_HELP)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Drop blocks, and with each block those that come after it in any chain. Leased ones go at their release."""
    with control(target, timeout) as stub:
        info = find_namespace(stub, namespace)
        reply = stub.Evict(pb.ControlEvictRequest(root=info.root, keys=chain(info, keys, tokens_file).raw))
    if as_json:
        typer.echo(json.dumps({"evicted": reply.evicted, "leased": reply.leased, "absent": reply.absent}))
        return
    typer.echo(
        f"{reply.evicted} blocks evicted, {reply.leased} of them still leased, {reply.absent} keys were not here"
    )
