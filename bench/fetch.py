"""What a node gives its readers of another node's blocks: ``python -m bench.fetch [--json]``.

Two nodes and a reader on this machine, each a process. The ceiling are raw sockets between two processes, for as many
bytes, in the same rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from kvstore import Client, NamespaceSpec
from kvstore.cli.bench import worker
from kvstore.cli.bench.ceilings import prefaulted, socket_passes
from kvstore.cli.bench.node import OwnNode
from kvstore.cli.bench.report import Report, interleave, row
from kvstore.client.namespace import Namespace
from kvstore.core.keys import Keys

SIZES = (2 << 20, 64 << 10)  # bytes of a block
WORKING_SET = 128 << 20
CAPACITY = 512 << 20
LANE_BUFFERS = 4
RUNS = 9
TIMEOUT = 60.0


class Reading:
    """One chain at the holder, and a reader of each kind. Each measurement answers GB/s."""

    def __init__(self, holder: Client, near: Client, far: Client, routed: Client, block_bytes: int) -> None:
        spec = NamespaceSpec(model=f"bench fetch {block_bytes}", block_tokens=16, block_bytes=block_bytes)
        self.near, self.far, self.routed = (client.namespace(spec) for client in (near, far, routed))
        self.blocks = WORKING_SET // block_bytes
        self.keys = self.near.keys(range(16 * self.blocks))
        dice = np.random.default_rng(0)
        data = [dice.integers(0, 255, block_bytes, np.uint8) for _ in range(self.blocks)]
        done = holder.namespace(spec).put(self.keys, data)
        assert done.stored == self.blocks, done
        self.into = [prefaulted(block_bytes) for _ in range(self.blocks)]
        while self.near.match(self.keys) < self.blocks:
            time.sleep(0.05)

    def through_the_node(self) -> float:
        """A reader gets what its node has to fetch."""
        self._forget()
        return self._got(self.near, self.keys)

    def to_the_node(self) -> float:
        """Its node has all of it: from the first request to the last block."""
        self._forget()
        begun = time.perf_counter()
        with self.near.borrow(self.keys) as views:
            spent = time.perf_counter() - begun
            assert len(views) == self.blocks
        return WORKING_SET / spent / 1e9

    def without_the_node(self) -> float:
        """A reader gets it from the holder over TCP itself."""
        return self._got(self.far, self.keys)

    def past_the_node(self) -> float:
        """A reader on no node's machine, whose home node lacks all of it, gets it from the holder that this names."""
        self._forget()
        return self._got(self.routed, self.keys)

    def _got(self, namespace: Namespace, keys: Keys) -> float:
        begun = time.perf_counter()
        found = namespace.get(keys, self.into)
        spent = time.perf_counter() - begun
        assert found == self.blocks, found
        return WORKING_SET / spent / 1e9

    def _forget(self) -> None:
        self.near.evict(self.keys)
        time.sleep(0.3)  # its leases are given back, and its peers told


def measure(runs: int, report: Report) -> None:
    """All sizes."""
    with ExitStack() as stack:
        ports = [f"127.0.0.1:{port}" for port in _free_ports(2)]
        cell = {"discovery": f"static://{','.join(ports)}"}
        nodes = [OwnNode(CAPACITY, {"control_address": control, **cell}) for control in ports]
        (holder, tcp), (reader, home) = (stack.enter_context(node) for node in nodes)
        clients = [stack.enter_context(Client(target, timeout=TIMEOUT)) for target in (holder, reader, tcp, home)]
        lanes = _lanes(stack)
        for size in SIZES:
            _measure(Reading(*clients, block_bytes=size), size, lanes, runs, report)


def _measure(reading: Reading, size: int, lanes: list[socket.socket], runs: int, report: Report) -> None:
    ways = socket_passes(lanes, WORKING_SET, [prefaulted(2 << 20) for _ in range(LANE_BUFFERS)], False)
    measurements: dict[str, Callable[[], float]] = {
        "fetch.get": reading.through_the_node,
        "fetch.node": reading.to_the_node,
        "fetch.routed": reading.past_the_node,
        "tcp.get": reading.without_the_node,
    }
    cases = list(measurements)
    measurements |= {way: lambda move=move: _rate(move) for way, move in ways.items()}  # type: ignore[misc]
    found = interleave(measurements, runs)
    params = {"block_bytes": size, "blocks": reading.blocks}
    for case in cases:
        ceilings = {way: found[way] for way in ways}
        report.rows.append(row(f"{case}.{size >> 10}k", "GB/s", found[case], ceilings=ceilings, params=params))


def _rate(move: Callable[[], int]) -> float:
    begun = time.perf_counter()
    return move() / (time.perf_counter() - begun) / 1e9


def _lanes(stack: ExitStack) -> list[socket.socket]:
    """Two connections to a process that does nothing but send."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=worker.peer, args=(theirs, WORKING_SET), daemon=True)
    process.start()
    stack.callback(process.kill)
    stack.callback(ours.close)  # the process ends when this does
    address = ours.recv()
    return [stack.enter_context(socket.create_connection(address)) for _ in range(2)]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    report = Report("fetch")
    measure(options.runs, report)
    print(report.to_json() if options.json else report.to_text())


if __name__ == "__main__":
    main()
