"""``kvstore bench transport``: the four transports side by side, from small blocks to large ones, in batches and alone.

The machinery is that of ``bench local``; cases that do not fit the working set are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from kvstore.cli.bench.cases import SIZES, Case, wanted
from kvstore.cli.bench.local import Crew, Options, Progress, open_crew, throughput
from kvstore.cli.bench.node import OwnNode
from kvstore.cli.bench.report import Report
from kvstore.transport.fabric.library import installed

LABELS = ("64KiB", "256KiB", "2MiB", "8MiB", "32MiB")
BATCHES = (1, 16, 128)
NAMES = ("shm", "tcp", "nixl", "ucx")


@dataclass(frozen=True)
class Found:
    """``missing``: transports whose library is not installed here."""

    report: Report
    missing: tuple[str, ...]


def cases(options: Options) -> Iterator[Case]:
    """In groups of one size and batch, so that no more than one group's blocks have to fit the store."""
    counts = tuple(dict.fromkeys((1, options.clients)))
    for label, batch in product(LABELS, BATCHES):
        if SIZES[label] * batch > options.working_set:
            continue
        for count, name, op in product(counts, NAMES, ("get", "put")):
            case = Case(name, op, label, batch, count)  # type: ignore[arg-type]  # of NAMES
            if wanted(case.name, options.only) and SIZES[label] * batch * count <= options.working_set:
                yield case


def run(options: Options, progress: Progress = lambda what, done, total: None) -> Found:
    """Measures all cases wanted. Raises KVStoreError when the node does not start, or misses what it was given."""
    missing = tuple(name for name in ("nixl", "ucx") if not installed(name))
    chosen = [case for case in cases(options) if case.transport not in missing]
    report = Report("transport")
    offered = ",".join(name for name in NAMES if name not in missing)
    capacity = 3 * options.working_set + (256 << 20)
    with open_crew(options, OwnNode(capacity, {"transports": offered, "segment_bytes": 64 << 20})) as crew:
        for nth, case in enumerate(chosen):
            report.rows.append(throughput(crew, case, options))
            progress(case.name, nth + 1, len(chosen))
            if nth + 1 == len(chosen) or _group(chosen[nth + 1]) != _group(case):
                _clear(crew, case)
    return Found(report, missing)


def _group(case: Case) -> tuple[str, int]:
    return case.label, case.batch


def _clear(crew: Crew, case: Case) -> None:
    """Makes room for blocks of another size."""
    crew.call(1, "drop", case)
