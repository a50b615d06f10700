"""kvstore pin: keeps blocks from eviction."""

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
def pin(
    keys: Annotated[str | None, typer.Option(help=KEYS_HELP)] = None,
    tokens_file: Annotated[Path | None, typer.Option(help=TOKENS_HELP)] = None,
    hard: Annotated[bool, typer.Option("--hard", help="Never evict them, within the bounds of the node.")] = False,
    ttl: Annotated[float, typer.Option(help="Seconds until the pin ends; 0: for good.")] = 0.0,
    namespace: Annotated[str, typer.Option(help="Root (hex, or its first digits) or model of the namespace.")] = "",
    target: Annotated[str, typer.Option(envvar="KVSTORE_TARGET", help=TARGET_HELP)] = "auto",
    timeout: Annotated[float, typer.Option(help=TIMEOUT_HELP)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Pin blocks: they are the last to be evicted or, with --hard, never are. Dropping them by name still works."""
    with control(target, timeout) as stub:
        info = find_namespace(stub, namespace)
        named = chain(info, keys, tokens_file)
        reply = stub.Pin(pb.PinRequest(root=info.root, keys=named.raw, hard=hard, ttl_seconds=ttl))
    if as_json:
        typer.echo(json.dumps({"pinned": reply.pinned, "asked": len(named)}))
        return
    typer.echo(f"{reply.pinned} of {len(named)} blocks pinned; the others are not here")
