"""kvstore match: how much of a chain a node has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kvstore.cli.control import TARGET_HELP, TIMEOUT_HELP, control, find_namespace
from kvstore.cli.tokens import KEYS_HELP, TOKENS_HELP, chain
from kvstore.core.namespace import parse_canonical
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import types_pb2 as types

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def match(
    keys: Annotated[str | None, typer.Option(help=KEYS_HELP)] = None,
    tokens_file: Annotated[Path | None, typer.Option(help=TOKENS_HELP)] = None,
    namespace: Annotated[str, typer.Option(help="Root (hex, or its first digits) or model of the namespace.")] = "",
    target: Annotated[str, typer.Option(envvar="KVSTORE_TARGET", help=TARGET_HELP)] = "auto",
    timeout: Annotated[float, typer.Option(help=TIMEOUT_HELP)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the longest prefix of a chain that the cell holds, as the node knows it. Takes no lease and counts as no
    use."""
    with control(target, timeout) as stub:
        info = find_namespace(stub, namespace)
        wanted = chain(info, keys, tokens_file)
        reply = stub.Match(pb.ControlMatchRequest(root=info.root, keys=wanted.raw))
    reason = types.MissReason.Name(reply.miss).removeprefix("MISS_REASON_").lower() if reply.miss else ""
    block_tokens = parse_canonical(info.canonical).block_tokens
    if as_json:
        found = {"blocks": reply.blocks, "asked": len(wanted), "tokens": reply.blocks * block_tokens, "miss": reason}
        typer.echo(json.dumps({"root": info.root.hex(), **found, "remote_blocks": reply.remote_blocks}))
        return
    ending = f"; the next one is missing: {reason}" if reason else ""
    where = f"are here, the last {reply.remote_blocks} of them on other nodes" if reply.remote_blocks else "are here"
    typer.echo(f"{reply.blocks} of {len(wanted)} blocks ({reply.blocks * block_tokens} tokens) {where}{ending}")
