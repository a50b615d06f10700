"""The tables of README.md, from what the benchmarks printed into bench/results: ``python -m bench.tables [--write]``.

README.md has a pair of comments around each; a test holds what is between them to what this prints.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = Path(__file__).parent / "results"
_MARKED = re.compile(r"(<!-- (\w+): .*? -->\n)(.*?)(<!-- end -->)", re.DOTALL)

Rows = dict[str, dict[str, Any]]


def rows(name: str) -> Rows:
    """The rows of a result by case."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    return {row["case"]: row for row in found["rows"]}


def machine(name: str) -> str:
    known = json.loads((RESULTS / f"{name}.json").read_text())["machine"]
    return f"{known['cpu']}, {known['cores']} cores, {known['memory_bytes'] / 2**30:.0f} GiB"


def table(head: tuple[str, ...], lines: Iterator[tuple[str, ...]]) -> str:
    rule = ("---", *("---:" for _ in head[1:]))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *lines))


def local() -> str:
    """Data path: rates and shares of what the machine does without us."""
    found = rows("local")
    shown = [case for case in found if case.startswith(("shm", "tcp")) and not case.endswith("latency")]

    def lines() -> Iterator[tuple[str, ...]]:
        for case in shown:
            row = found[case]
            yield f"`{case}`", f"{row['value']:.2f}", f"{row['ceiling']:.2f}", f"{row['share']:.2f}"

    head = ("case", "GB/s", "ceiling", "share")
    return f"{machine('local')}.\n\n" + table(head, lines()) + "\n" + latencies(found)


def latencies(found: Rows) -> str:
    def lines() -> Iterator[tuple[str, ...]]:
        get, match = found["shm.get.2MiB.latency"], found["match.8192"]
        yield "one shm get of 2 MiB", f"{get['value']:,.0f} µs", f"{get['ceiling']:,.0f} µs (its memcpy)"
        yield (
            "131,072 tokens hashed, 8,192 blocks matched",
            f"{match['value']:,.0f} µs",
            (f"{match['ceiling']:,.0f} µs (the hashing)"),
        )
        yield "index at 5 million entries", f"{found['index.5m.bytes_per_entry']['value']:.0f} B an entry", ""
        pause = found["index.5m.longest_pause"]
        wall = pause["params"]["longest_wall_us"]
        yield "its longest operation, full and evicting", f"{pause['value']:,.0f} µs of CPU, {wall:,.0f} µs in all", ""

    return table(("", "measured", "without us"), lines())


def tiers() -> str:
    def lines() -> Iterator[tuple[str, ...]]:
        for case, row in rows("tiers").items():
            ceiling = "" if row["ceiling"] is None else f"{row['ceiling']:.2f}"
            share = "" if row["share"] is None else f"{row['share']:.2f}"
            yield f"`{case}`", f"{row['value']:.2f} {row['unit']}", ceiling, share

    return table(("case", "measured", "ceiling", "share"), lines())


def evict() -> str:
    """Block hit rates of the trace by policy and capacity."""
    found = json.loads((RESULTS / "evict.json").read_text())["rows"]
    chosen = [row["params"] | {"value": row["value"]} for row in found if row["params"]["metric"] == "block_hit_rate"]
    capacities = sorted({one["capacity"] for one in chosen})

    def lines() -> Iterator[tuple[str, ...]]:
        for policy in dict.fromkeys(one["policy"] for one in chosen):
            by = {one["capacity"]: one["value"] for one in chosen if one["policy"] == policy}
            yield f"`{policy}`", *(f"{by[capacity]:.4f}" for capacity in capacities)

    return table(("policy", *(f"{capacity:,} blocks" for capacity in capacities)), lines())


def printed(name: str) -> str:
    """The end of what a command printed."""
    return "```text\n" + (RESULTS / f"{name}.txt").read_text().strip("\n") + "\n```\n"


TABLES: dict[str, Callable[[], str]] = {
    "demo": partial(printed, "demo"),
    "local": local,
    "tiers": tiers,
    "evict": evict,
}


def filled(text: str) -> str:
    """A document with its tables as they are now."""
    return _MARKED.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[4]}", text)


def main() -> None:
    if "--write" in sys.argv[1:]:
        README.write_text(filled(README.read_text()))
        return
    for name, make in TABLES.items():
        print(f"## {name}\n\n{make()}")


if __name__ == "__main__":
    main()
