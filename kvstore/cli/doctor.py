"""kvstore doctor: what is wrong with this machine and the node on it, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kvstore.cli.checkup import machine
from kvstore.cli.checkup.disk import disk
from kvstore.cli.checkup.running import Running
from kvstore.cli.control import TARGET_HELP, TIMEOUT_HELP
from kvstore.cli.node import with_settings
from kvstore.core.errors import InvalidArgument
from kvstore.node.config import NodeConfig, load
from kvstore.node.status.findings import Finding

app = typer.Typer(pretty_exceptions_enable=False)
_MARKS = {"ok": ("ok", "green"), "note": ("note", "blue"), "warning": ("warn", "yellow"), "error": ("FAIL", "red")}


@app.command()
@with_settings
def doctor(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file of settings [KVSTORE_CONFIG].", show_default=False)
    ] = None,
    target: Annotated[str, typer.Option("--target", envvar="KVSTORE_TARGET", help=TARGET_HELP)] = "auto",
    timeout: Annotated[float, typer.Option("--timeout", help=TIMEOUT_HELP)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    **flags: Any,
) -> int:
    """Look for what is wrong with this machine, and with the node that runs. Exits 1 when something must be mended."""
    if not 0 < timeout <= 600:
        raise InvalidArgument(f"--timeout must be above 0 and at most 600 seconds, not {timeout}", field="timeout")
    loaded = load(config, flags=flags)
    found = list(_examined(loaded, Running(_where(target, loaded), timeout)))
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(one) for one in found]}))
    else:
        _print(found)
    return int(any(one.level == "error" for one in found))


def _where(target: str, config: NodeConfig) -> str:
    """Unless another node is meant: that of these settings."""
    if target != "auto":
        return target
    if config.socket is not None and config.socket.exists():
        return f"unix://{config.socket}"
    return f"kv://{config.data_address}" if config.data_address and config.data_address.port else target


def _examined(config: NodeConfig, running: Running) -> Iterator[Finding]:
    yield from machine.versions()
    yield from machine.memory(config)
    yield from machine.huge_pages(config)
    yield from machine.limits(config)
    yield from machine.rdma()
    yield from disk(config)
    yield from machine.ports(config, running.ports)
    yield from running.findings()


def _print(found: list[Finding]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for one in found:
        mark, colour = _MARKS[one.level]
        console.print(Text(f"{mark:<5}", style=colour) + Text(one.what))
        if one.fix:
            console.print(Text(f"      {one.fix}"))
    bad = sum(one.level == "error" for one in found)
    soft = sum(one.level == "warning" for one in found)
    console.print(f"{bad} to be mended, {soft} to look at" if bad or soft else "all is well")
