"""``kvstore bench evict``: hit rates of the eviction policies on a trace, beside the best possible one (OPT)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from kvstore.cli.bench.replay import Hits, Replay, best_possible
from kvstore.cli.bench.report import Report, Row, row
from kvstore.cli.bench.trace import Request, load_trace
from kvstore.core.errors import ConfigError
from kvstore.tiers.eviction import POLICIES

OPT = "opt"
METRICS = ("block_hit_rate", "token_hit_rate", "flops_saved")
CAPACITIES = (1000, 3000, 10000, 30000)

Simulator: TypeAlias = Callable[[list[Request], int], Hits]  # a policy that is no part of the product


def run(
    trace: Path | list[Request],
    capacities: Sequence[int] = CAPACITIES,
    policies: Sequence[str] = (*POLICIES, OPT),
    pieces: int = 0,
    interleave: int = 1,
    others: Mapping[str, Simulator] | None = None,
) -> list[Row]:
    """One row for each policy, capacity (in the trace's blocks of 512 tokens) and metric; the ceiling is OPT.

    ``pieces``: blocks a put carries, 0: the whole rest of a chain. ``interleave``: requests under way at once.
    ``others``: more policies by name. Raises ConfigError for a policy nobody knows.
    """
    requests = load_trace(trace) if isinstance(trace, Path) else trace
    known = [*POLICIES, OPT, *(others or {})]
    for name in policies:
        if name not in known:
            raise ConfigError(f"policy {name!r} does not exist; there are: {', '.join(known)}", got=name)
    rows: list[Row] = []
    for capacity in capacities:
        best = best_possible(requests, capacity).metrics()
        for name in policies:
            found = best if name == OPT else _replay(name, requests, capacity, pieces, interleave, others or {})
            params: dict[str, str | int] = {
                "policy": name,
                "capacity": capacity,
                "pieces": pieces,
                "interleave": interleave,
            }
            rows.extend(_rows(params, found, best))
    return rows


def _replay(
    name: str, requests: list[Request], capacity: int, pieces: int, interleave: int, others: Mapping[str, Simulator]
) -> dict[str, float]:
    if name in POLICIES:
        return Replay(POLICIES[name], capacity, pieces, interleave).run(requests).metrics()
    return others[name](requests, capacity).metrics()


def _rows(params: Mapping[str, str | int], found: Mapping[str, float], best: Mapping[str, float]) -> Iterable[Row]:
    for metric in METRICS:
        ceilings = None if params["policy"] == OPT else {OPT: [best[metric]]}
        case = f"{params['policy']}.{params['capacity']}.{metric}"
        yield row(case, "ratio", [found[metric]], ceilings=ceilings, params={**params, "metric": metric})


def to_text(rows: Sequence[Row]) -> str:
    """A table for people: a line for each metric and policy, a column for each capacity."""
    capacities = list(dict.fromkeys(one.params["capacity"] for one in rows))
    cells: dict[tuple[str, str], list[str]] = {}
    for metric in METRICS:
        for one in rows:
            if one.params["metric"] == metric:
                cells.setdefault((metric, one.params["policy"]), []).append(f"{one.value:.4f}")
    head = [f"{'metric':16}{'policy':12}" + "".join(f"{capacity:>9,}" for capacity in capacities)]
    return "\n".join(head + [f"{m:16}{p:12}" + "".join(f"{one:>9}" for one in line) for (m, p), line in cells.items()])


def main(
    arguments: Sequence[str] | None = None, trace: Path | None = None, others: Mapping[str, Simulator] | None = None
) -> None:
    """The command line of ``bench/evict.py``."""
    parser = argparse.ArgumentParser(prog="bench.evict", description=__doc__)
    parser.add_argument("--trace", type=Path, default=trace, required=trace is None)
    parser.add_argument("--capacity", default=",".join(map(str, CAPACITIES)), help="blocks of 512 tokens, by commas")
    parser.add_argument("--policies", default=",".join((*POLICIES, OPT)), help=f"also: {', '.join(others or {})}")
    parser.add_argument("--pieces", type=int, default=0, help="blocks a put carries, 0: all at once")
    parser.add_argument("--interleave", type=int, default=1, help="requests under way at once")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    capacities = [int(one) for one in given.capacity.split(",")]
    rows = run(given.trace, capacities, given.policies.split(","), given.pieces, given.interleave, others)
    print(Report("evict", rows=rows).to_json() if given.json else to_text(rows))
