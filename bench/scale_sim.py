"""Many nodes and one trace, simulated: ``python -m bench.scale_sim [--json]``.

How much hit rate is lost against one store of the same total size, how evenly the nodes are filled, what the events and
the index of a cell cost, how that grows with the nodes, and how many a cell can have. Some 15 minutes on two cores.
A short form: ``--requests 2000 --nodes 8,32 --blocks 96000``. Exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bench.cell import COALESCED, TRANSPORT, Cell, Figures, fine
from kvstore.cli.bench.report import Report, Row, row
from kvstore.cli.bench.trace import load_trace
from kvstore.cluster.prefix_index import MAX_NODES, PrefixIndex
from kvstore.cluster.sink import DRAM
from kvstore.v1 import events_pb2 as pb

TRACE = Path(__file__).parent / "trace" / "conversation.jsonl"
HIT_RATE, BALANCE = 0.97, 1.3  # targets: share of one store's hit rate; most bytes stored over the mean
ENTRIES, CHAIN = 1_000_000, 8192
RUNS = 5

# A busy node, for the ceilings: what it takes and holds, and what a cell may cost each of its members.
NEW_BLOCKS, HELD_BLOCKS = 500.0, 131_072  # a second: 1 GB/s of 2 MiB blocks; 256 GiB of them
CORES, INDEX_BYTES, EVENT_BYTES = 0.25, 1 << 30, 12.5e6  # a quarter core, 1 GiB, 1 % of 10 Gbit/s


@dataclass(frozen=True, slots=True)
class Case:
    """One run: ``nodes`` 1 is the one store that the others are measured against."""

    nodes: int
    blocks: int
    block_tokens: int
    requests: int


def simulate(case: Case) -> tuple[Case, Figures, float]:
    """The figures of a run, and the seconds it took. In a process of its own."""
    began = time.monotonic()
    trace = fine(load_trace(TRACE)[: case.requests or None], case.block_tokens)
    return case, Cell(case.nodes, case.blocks, case.block_tokens).run(trace), time.monotonic() - began


# --- one real index, alone ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexCosts:
    """Bytes an entry, at one holder and at two; CPU seconds to take in an event's key; those of look-ups."""

    one_holder: float
    two_holders: float
    key_seconds: float
    lookups: list[float]


def measure_index(entries: int = ENTRIES, nodes: int = 128) -> IndexCosts:
    """Fills an index, gives every block a second holder, and looks up chains."""
    keys = np.random.default_rng(0).integers(0, 2**64, (entries, 2), np.uint64)
    root, before = bytes(16), _resident()
    index = PrefixIndex(entries)
    numbers = [index.add_node(bytes([node])) for node in range(nodes)]
    chains = range(0, entries - CHAIN + 1, CHAIN)
    began = time.thread_time()
    for at, first in enumerate(chains):
        index.stored(numbers[at % nodes], root, 0, keys[first : first + CHAIN], DRAM)
    took, one = time.thread_time() - began, (_resident() - before) / index.entries
    for at, first in enumerate(chains):
        index.stored(numbers[(at + 1) % nodes], root, 0, keys[first : first + CHAIN], DRAM)
    two = (_resident() - before) / index.entries
    lookups = []
    for first in list(chains)[: 8 * RUNS]:
        start = time.perf_counter()
        found = index.lookup(root, keys[first : first + CHAIN])
        lookups.append(time.perf_counter() - start)
        if found.cell != CHAIN:
            raise RuntimeError(f"a chain of {CHAIN} blocks is known to {found.cell}")
    return IndexCosts(one, two, took / index.entries, lookups)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- what it comes to --------------------------------------------------------------------------------------


def cell_rows(case: Case, figures: Figures, single: Figures, took: float) -> Iterable[Row]:
    """Of one cell."""
    params = {
        "nodes": case.nodes, "blocks": case.blocks, "block_tokens": case.block_tokens, "requests": figures.requests,
        "coalesced_s": COALESCED, "transport_s": TRANSPORT, "took_s": round(took, 1),
    }  # fmt: skip
    made = partial(row, params=params)
    mean = sum(figures.resident) / case.nodes
    yield row(
        "placement.hit_rate", "ratio", [figures.hit_rate], ceilings={"one store": [single.hit_rate]}, params=params
    )
    yield made("placement.balance", "ratio", [max(figures.resident) / mean])
    yield made("placement.taken_balance", "ratio", [max(figures.taken) * case.nodes / figures.stored])
    yield made("placement.copied", "ratio", [figures.copied / max(figures.stored, 1)])
    yield made("placement.moved_chains", "ratio", [figures.moved / figures.requests])
    yield made("placement.stale_blocks", "ratio", [figures.stale / max(figures.hits, 1)])
    peers = (case.nodes - 1) / case.nodes  # a subscriber hears all but itself
    yield made("events.per_second", "ratio", [figures.events / figures.seconds * peers])
    yield made("events.keys_per_second", "ratio", [figures.keys / figures.seconds * peers])
    yield made("events.bytes_per_second", "bytes", [event_bytes(case, figures)])
    yield made("events.bytes_per_key", "bytes", [figures.event_bytes / max(figures.keys, 1)])


def event_bytes(case: Case, figures: Figures) -> float:
    """Bytes a second to one subscriber: its peers' events, and a sign of life a second from each."""
    peers = case.nodes - 1
    return figures.event_bytes / figures.seconds * peers / case.nodes + peers * _sign_of_life()


def _sign_of_life() -> int:
    status = pb.NodeStatus(capacity_bytes=1 << 38, free_bytes=1 << 33)
    return pb.EventBatch(node_id=bytes(16), boot_id=bytes(16), sequence=1 << 20, status=status).ByteSize()


def index_rows(costs: IndexCosts) -> Iterable[Row]:
    """Of the one real index."""
    params = {"entries": ENTRIES}
    yield row("index.entry.one_holder", "bytes", [costs.one_holder], params=params)
    yield row("index.entry.two_holders", "bytes", [costs.two_holders], params=params)
    yield row("index.event_key", "us", [costs.key_seconds * 1e6], params=params)
    yield row("index.lookup", "us", [one * 1e6 for one in costs.lookups], params={**params, "keys": CHAIN})


def law_rows(cells: Sequence[tuple[Case, Figures]]) -> Iterable[Row]:
    """How costs grow with the nodes: the exponent of their number, at the same load in all, and at the same on each."""
    for blocks in sorted({case.blocks for case, _ in cells}):
        mine = [(case, figures) for case, figures in cells if case.blocks == blocks]
        if len(mine) < 2:
            continue
        nodes = [math.log(case.nodes) for case, _ in mine]
        costs = {
            "events": [figures.events / figures.seconds for _, figures in mine],
            "keys": [figures.keys / figures.seconds for _, figures in mine],
            "bytes": [event_bytes(case, figures) for case, figures in mine],
        }
        for name, values in costs.items():
            slope = float(np.polyfit(nodes, np.log(values), 1)[0])
            params = {"blocks": blocks, "nodes": [case.nodes for case, _ in mine]}
            yield row(f"law.{name}.same_total_load", "ratio", [slope], params={**params, "of": f"{name} ~ nodes^value"})
            yield row(
                f"law.{name}.same_load_a_node", "ratio", [slope + 1], params={**params, "of": f"{name} ~ nodes^value"}
            )


def ceiling_rows(costs: IndexCosts, key_bytes: float) -> Iterable[Row]:
    """How many busy nodes a cell can have until what its members pay for it is over a bound."""
    keys = 2 * NEW_BLOCKS  # each block that comes pushes one out
    ceilings = {
        "cpu": (CORES / (keys * costs.key_seconds), f"{CORES} of a core for {NEW_BLOCKS:.0f} new blocks/s a node"),
        "network": (EVENT_BYTES / (keys * key_bytes + _sign_of_life()), f"{EVENT_BYTES:.0f} bytes/s in each node"),
        "memory": (
            INDEX_BYTES / (HELD_BLOCKS * costs.two_holders),
            f"{INDEX_BYTES} bytes for {HELD_BLOCKS} blocks a node",
        ),
        "numbers": (float(MAX_NODES), "numbers of nodes"),
    }
    for name, (nodes, bound) in ceilings.items():
        yield row(f"ceiling.{name}", "ratio", [nodes], params={"unit": "nodes", "bound": bound})
    least = min(ceilings, key=lambda name: ceilings[name][0])
    yield row("ceiling.cell", "ratio", [ceilings[least][0]], params={"unit": "nodes", "bound": least})


def run(cases: Sequence[Case], workers: int) -> list[Row]:
    """All cases in ``workers`` processes, the longest first; then the index alone."""
    found: dict[Case, tuple[Figures, float]] = {}
    with ProcessPoolExecutor(workers) as pool:
        for case, figures, took in pool.map(simulate, sorted(cases, key=lambda case: -case.blocks)):
            found[case] = figures, took
            print(f"{case.nodes} nodes, {case.blocks} blocks: {figures.hit_rate:.4f} in {took:.0f} s", file=sys.stderr)
    rows: list[Row] = []
    cells = [(case, figures) for case, (figures, _) in found.items() if case.nodes > 1]
    cells.sort(key=lambda one: (one[0].blocks, one[0].nodes))
    singles = {case.blocks: figures for case, (figures, _) in found.items() if case.nodes == 1}
    for blocks, figures in sorted(singles.items()):
        rows.append(row("one_store.hit_rate", "ratio", [figures.hit_rate], params={"nodes": 1, "blocks": blocks}))
    for case, figures in cells:
        rows += cell_rows(case, figures, singles[case.blocks], found[case][1])
    costs = measure_index()
    rows += [*index_rows(costs), *law_rows(cells)]
    rows += ceiling_rows(costs, max(figures.event_bytes / max(figures.keys, 1) for _, figures in cells))
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024
    rows.append(row("run.peak_bytes_a_process", "bytes", [peak], params={"processes": workers + 1}))
    return rows


def missed(rows: Iterable[Row]) -> list[str]:
    """Targets that were not reached."""
    found = []
    for one in rows:
        where = f"{one.params.get('nodes')} nodes, {one.params.get('blocks')} blocks"
        if one.case == "placement.hit_rate" and one.share is not None and one.share < HIT_RATE:
            found.append(f"{where}: {one.share:.3f} of one store's hit rate, not {HIT_RATE}")
        if one.case == "placement.balance" and one.value > BALANCE:
            found.append(f"{where}: most bytes stored {one.value:.2f} times the mean, not {BALANCE}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.scale_sim", description=__doc__)
    parser.add_argument("--nodes", default="8,16,64,128", help="by commas")
    parser.add_argument("--blocks", default="320000,960000", help="of all nodes together, by commas")
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--requests", type=int, default=0, help="of the trace, 0: all")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    nodes = [1, *(int(one) for one in given.nodes.split(","))]
    cases = [
        Case(count, int(blocks), given.block_tokens, given.requests)
        for blocks in given.blocks.split(",") for count in nodes
    ]  # fmt: skip
    report = Report("scale_sim", rows=run(cases, given.workers))
    print(report.to_json() if given.json else report.to_text())
    bad = missed(report.rows)
    for one in bad:
        print("not as it must be: " + one, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
