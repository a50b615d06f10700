"""`kvstore fsck DIR`: checks the directory of an NVMe tier while no node uses it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

app = typer.Typer()
_SHOWN = 20  # bad slots listed for people


@app.command()
def fsck(
    directory: Annotated[Path, typer.Argument(help="Directory of the NVMe tier.")],
    repair: bool = typer.Option(False, "--repair", help="Remove the entries of bad slots; the blocks become misses."),
    quick: bool = typer.Option(False, "--quick", help="Check index and trailers, not every byte."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Check an NVMe tier that no node uses: its index, and every byte in its slots.

    Exit status 1: something is wrong and was not repaired.
    """
    from kvstore.tiers.nvme.fsck import FsckReport
    from kvstore.tiers.nvme.fsck import fsck as check

    with Progress(console=Console(stderr=True), transient=True, disable=as_json) as bar:
        task = bar.add_task("slots", total=None)
        report: FsckReport = check(
            directory,
            repair=repair,
            payload=not quick,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        typer.echo(json.dumps({**asdict(report), "reasons": report.reasons, "clean": report.clean}))
    else:
        _print(report.directory, report.entries, report.bytes, report.segments, report.trouble)
        for slot, reason in report.bad[:_SHOWN]:
            typer.echo(f"  slot {slot}: {reason}")
        if len(report.bad) > _SHOWN:
            typer.echo(f"  and {len(report.bad) - _SHOWN} more; --json lists all")
        typer.echo(_verdict(len(report.bad), report.repaired, report.clean))
    if not report.clean:
        raise typer.Exit(1)


def _print(directory: str, entries: int, size: int, segments: int, trouble: str) -> None:
    typer.echo(f"{directory}: {entries} blocks, {size / 1e9:.2f} GB, in {segments} segments")
    if trouble:
        typer.echo(f"  {trouble}")


def _verdict(bad: int, repaired: int, clean: bool) -> str:
    if clean and not bad:
        return "clean"
    if clean:
        return f"repaired: {repaired} removed"
    return f"{bad or 'the index is'} bad; run again with --repair to remove them (a cache miss each)"
