"""The one language of all benchmarks: rows with a value, this machine's ceiling, and the share of it that was reached.

``value`` is the median of several runs that were interleaved with those of the ceiling, so that what disturbs the
machine for a while disturbs both.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

UNITS = ("GB/s", "us", "s", "ratio", "bytes")
LESS_IS_BETTER = ("us", "s")


@dataclass(frozen=True)
class Row:
    """One measured case. ``share`` is value/ceiling, for durations ceiling/value: 1.0 is the ceiling."""

    case: str
    params: Mapping[str, Any]
    value: float
    unit: str
    ceiling: float | None
    share: float | None
    min: float
    max: float
    runs: int


@dataclass
class Report:
    """What a benchmark prints."""

    bench: str
    machine: Mapping[str, Any] = field(default_factory=lambda: machine())
    rows: list[Row] = field(default_factory=list)

    def to_json(self) -> str:
        """The report as one JSON object."""
        return json.dumps({"bench": self.bench, "machine": self.machine, "rows": [asdict(row) for row in self.rows]})

    def to_text(self) -> str:
        """The report as a table for people."""
        head = ("case", "value", "unit", "ceiling", "share", "min", "max", "runs")
        body = [
            (
                r.case,
                shown(r.value),
                r.unit,
                shown(r.ceiling),
                shown(r.share, 3),
                shown(r.min),
                shown(r.max),
                str(r.runs),
            )
            for r in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) if n in (0, 2) else cell.rjust(width) for n, (cell, width) in enumerate(cells))
            for cells in (zip(line, widths, strict=True) for line in (head, *body))
        ]
        facts = "  ".join(f"{name}: {value}" for name, value in self.machine.items())
        return "\n".join([f"kvstore bench {self.bench}", facts, "", *(line.rstrip() for line in lines)])


def row(
    case: str,
    unit: str,
    values: Iterable[float],
    *,
    ceilings: Mapping[str, Iterable[float]] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Row:
    """A row from the values of all runs. ``ceilings``: runs of each way there is without us; the best one counts.

    >>> row("x", "us", [3, 1, 2], ceilings={"a": [1, 1, 1], "b": [4, 4, 4]}).share
    0.5
    """
    if unit not in UNITS:
        raise ValueError(f"{unit!r} is no unit of a benchmark; units are {', '.join(UNITS)}")
    runs = list(values)
    value, params = statistics.median(runs), dict(params or {})
    ceiling = share = None
    if ceilings:
        less = unit in LESS_IS_BETTER
        medians = {way: statistics.median(times) for way, times in ceilings.items()}
        params["ceiling"] = way = (min if less else max)(medians, key=medians.__getitem__)
        params["ceilings"] = medians
        ceiling = medians[way]
        share = ceiling / value if less else value / ceiling
    return Row(case, params, value, unit, ceiling, share, min(runs), max(runs), len(runs))


def interleave(
    measurements: Mapping[str, Callable[[], float]], runs: int, progress: Callable[[], object] = lambda: None
) -> dict[str, list[float]]:
    """Runs every measurement once, then all again, ``runs`` times; the values of each."""
    found: dict[str, list[float]] = {name: [] for name in measurements}
    for _ in range(runs):
        for name, measure in measurements.items():
            found[name].append(measure())
        progress()
    return found


def shown(value: float | None, digits: int = 2) -> str:
    """A number for people: thousands grouped, few digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}f}"


def machine() -> dict[str, Any]:
    """What one must know of this machine to read the numbers."""
    import numpy
    import xxhash

    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "xxhash": xxhash.VERSION,
        "load": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
