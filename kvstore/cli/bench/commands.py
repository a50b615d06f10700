"""``kvstore bench NAME``: the commands of all benchmarks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from kvstore.cli.bench.report import Report

app = typer.Typer(help="Measure this machine with kvstore and without it.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.callback()
def _root() -> None:
    """Measure this machine with kvstore and without it."""


@app.command("local")
def local_command(
    json: Json = False,
    target: Annotated[str, typer.Option(help="A node of this host that runs already; else one is started.")] = "",
    case: Annotated[list[str] | None, typer.Option(help="Only cases that fit, such as 'shm.*.x16'.")] = None,
    runs: Annotated[int, typer.Option(help="Interleaved runs of each case; the median counts.")] = 5,
    clients: Annotated[int, typer.Option(help="Client processes of the second form of each case.")] = 8,
    working_set: Annotated[int, typer.Option(help="MiB that one pass moves; a multiple of 64.")] = 256,
) -> None:
    """Put, get and match beside memcpy and raw sockets, by 1 and by several client processes."""
    from kvstore.cli.bench.local import Options, run

    signal.signal(signal.SIGTERM, _stop)  # so that node, clients and their memory go with this process
    options = Options(target, runs, clients, working_set << 20, tuple(case or ()))
    with progress_bar(quiet=json) as progress:
        report = run(options, progress)
    show(report, json)


@app.command("tiers")
def tiers_command(
    json: Json = False,
    directory: Annotated[Path | None, typer.Option(help="On the disk to measure; default: the current one.")] = None,
    blocks: Annotated[int, typer.Option(help="Blocks of 2 MiB that one run moves; a multiple of 16.")] = 128,
    entries: Annotated[int, typer.Option(help="Entries of the index that is recovered.")] = 1_000_000,
    runs: Annotated[int, typer.Option(help="Interleaved runs of each case; the median counts.")] = 5,
) -> None:
    """The block store as a library: DRAM beside memcpy, NVMe beside raw O_DIRECT, recovery of a large index."""
    from kvstore.cli.bench.tiers import run

    show(run(directory, blocks, entries, runs), json)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def show(report: Report, json: bool) -> None:
    typer.echo(report.to_json() if json else report.to_text())


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], object]]:
    """A bar on the terminal's error stream: what, done, of how many."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("starting")

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield progress
