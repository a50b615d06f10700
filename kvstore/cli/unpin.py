"""kvstore unpin: lifts pins."""

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
def unpin(
    keys: Annotated[str | None, typer.Option(help=KEYS_HELP)] = None,
    tokens_file: Annotated[Path | None, typer.Option(help=TOKENS_HELP)] = None,
    namespace: Annotated[str, typer.Option(help="Root (hex, or its first digits) or model of the namespace.")] = "",
    target: Annotated[str, typer.Option(envvar="KVSTORE_TARGET", help=TARGET_HELP)] = "auto",
    timeout: Annotated[float, typer.Option(help=TIMEOUT_HELP)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Lift the pins of blocks. One that hard-pinned blocks hang on keeps its own."""
    with control(target, timeout) as stub:
        info = find_namespace(stub, namespace)
        named = chain(info, keys, tokens_file)
        reply = stub.Unpin(pb.UnpinRequest(root=info.root, keys=named.raw))
    typer.echo(json.dumps({"unpinned": reply.unpinned}) if as_json else f"{reply.unpinned} pins lifted")
