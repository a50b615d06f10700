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


@app.command("transport")
def transport_command(
    json: Json = False,
    case: Annotated[list[str] | None, typer.Option(help="Only cases that fit, such as 'nixl.get.*'.")] = None,
    runs: Annotated[int, typer.Option(help="Interleaved runs of each case; the median counts.")] = 5,
    clients: Annotated[int, typer.Option(help="Client processes of the second form of each case.")] = 8,
    working_set: Annotated[int, typer.Option(help="MiB that one pass moves; a multiple of 64.")] = 512,
) -> None:
    """Shared memory, TCP, NIXL and UCX side by side on this host, from 64 KiB to 32 MiB, in batches of 1 to 128."""
    from kvstore.cli.bench.local import Options
    from kvstore.cli.bench.transport import run

    signal.signal(signal.SIGTERM, _stop)
    with progress_bar(quiet=json) as progress:
        found = run(Options("", runs, clients, working_set << 20, tuple(case or ()), passes=1), progress)
    for name in found.missing:
        typer.echo(f"{name}: not measured, its library is not installed (extra {name})", err=True)
    show(found.report, json)


@app.command("cluster")
def cluster_command(
    json: Json = False,
    runs: Annotated[int, typer.Option(help="Interleaved runs; the median counts.")] = 5,
    working_set: Annotated[int, typer.Option(help="MiB that one run moves; a multiple of 32.")] = 256,
) -> None:
    """A cell of three nodes: look-ups, bytes and CPU for what readers are served, repair after a kill -9."""
    from kvstore.cli.bench.cluster import Options, run

    signal.signal(signal.SIGTERM, _stop)
    if working_set < 32 or working_set % 32:
        raise typer.BadParameter(f"{working_set} is no multiple of 32", param_hint="--working-set")
    with progress_bar(quiet=json) as progress:
        report = run(Options(runs, working_set << 20), progress)
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


@app.command("index")
def index_command(
    json: Json = False,
    entries: Annotated[int, typer.Option(help="Entries of the index.")] = 5_000_000,
    policies: Annotated[str, typer.Option(help="Eviction policies, by commas.")] = "lru,turnscore",
) -> None:
    """Memory and pauses of the block index, full and evicting, at millions of entries."""
    from kvstore.cli.bench import index

    show(Report("index", rows=index.run(entries, policies.split(","))), json)


@app.command("evict")
def evict_command(
    trace: Annotated[Path, typer.Option(help="Requests, one JSON object a line; see bench/trace.")],
    json: Json = False,
    capacity: Annotated[str, typer.Option(help="Blocks of 512 tokens, by commas.")] = "1000,3000,10000,30000",
    policies: Annotated[str, typer.Option(help="By commas; opt is the best possible one.")] = "lru,turnscore,opt",
    pieces: Annotated[int, typer.Option(help="Blocks that a put carries, 0: all at once.")] = 0,
    interleave: Annotated[int, typer.Option(help="Requests under way at once.")] = 1,
) -> None:
    """Hit rates of the eviction policies on a trace, beside the best possible one."""
    from kvstore.cli.bench import evict

    found = evict.run(trace, [int(one) for one in capacity.split(",")], policies.split(","), pieces, interleave)
    typer.echo(Report("evict", rows=found).to_json() if json else evict.to_text(found))


@app.command("replay")
def replay_command(
    trace: Annotated[Path, typer.Option(help="Requests, one JSON object a line; see bench/trace.")],
    json: Json = False,
    directory: Annotated[Path | None, typer.Option(help="On the disk to use; default: the current one.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="Only cases that fit, such as 'lru.*'.")] = None,
    dram: Annotated[int, typer.Option(help="Blocks of 512 tokens that DRAM holds.")] = 3000,
    nvme: Annotated[int, typer.Option(help="Blocks that NVMe holds.")] = 15_000,
    block_bytes: Annotated[int, typer.Option(help="What a block is scaled to; a multiple of 4096.")] = 4096,
) -> None:
    """A trace through a real node with two tiers: hits by tier and bytes written, by write rule and policy."""
    from kvstore.cli.bench import replay_node

    cases = replay_node.chosen(tuple(case or ()))
    with progress_bar(quiet=json) as progress:
        report = replay_node.run(trace, cases, replay_node.Size(dram, nvme, block_bytes), directory, progress)
    typer.echo(report.to_json() if json else replay_node.to_text(report.rows))


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
