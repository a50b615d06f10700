"""``kvstore bench cluster``: what a cell of three nodes costs, each a process of its own on this machine.

A long prefix looked up at a node that has none of it; bytes sent and CPU for what readers are served; and how long it
takes until what a killed node held has its copies again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from kvstore import Namespace, NamespaceSpec
from kvstore.cli.bench.cases import BLOCK_TOKENS, MATCH_BLOCK_BYTES, MATCH_BLOCKS
from kvstore.cli.bench.ceilings import Bytes, Pass, prefaulted
from kvstore.cli.bench.cluster_nodes import CALL_TIMEOUT, CellNode, awaited, cell, cpu_seconds, raw_sockets
from kvstore.cli.bench.report import Report, Row, row
from kvstore.core.keys import Keys

NODES = 3
BLOCK_BYTES = 2 << 20
MATCHES = 10  # look-ups of one run; the quickest counts, as others disturb
SUSPECT_AFTER, GONE_AFTER = 2.0, 1.0  # seconds; together the time until it is given up
REPAIR_RATE = 16 << 30  # bytes a second: no bound, the copying itself is measured
SLICE = 32 << 20  # bytes of one chain


@dataclass(frozen=True, slots=True)
class Options:
    """``working_set``: bytes that one run moves, and that a killed node held."""

    runs: int = 5
    working_set: int = 256 << 20


Values = dict[str, list[float]]


def run(options: Options, progress: Callable[[str, int, int], object] = lambda what, done, total: None) -> Report:
    """All rows."""
    found: Values = {}
    with ExitStack() as stack:
        sockets = raw_sockets(stack, options.working_set)
        with cell(NODES, 3 * options.working_set) as nodes:
            reading = Reading(nodes, options, sockets)
            for nth in range(options.runs):
                progress("match and reads", nth, 2 * options.runs)
                _note(found, reading.match())
                _note(found, reading.served())
        for nth in range(options.runs):
            progress("repair", options.runs + nth, 2 * options.runs)
            _note(found, repair(options, sockets))
    return Report("cluster", rows=rows(found, options))


def _note(found: Values, values: dict[str, float]) -> None:
    for name, value in values.items():
        found.setdefault(name, []).append(value)


def rows(found: Values, options: Options) -> list[Row]:
    """What all runs came to."""
    size = {"nodes": NODES, "block_bytes": BLOCK_BYTES, "working_set": options.working_set}
    keys = {"nodes": NODES, "tokens": MATCH_BLOCKS * BLOCK_TOKENS, "keys": MATCH_BLOCKS}
    death = {**size, "replicas": 2, "suspect_after_s": SUSPECT_AFTER, "gone_after_s": GONE_AFTER}
    held = {"the node that has it": found["match.here"]}
    cpu, way = {**size, "per": "GB served"}, {"1 socket": found["cpu.socket"]}
    return [
        row("match.131072.cell", "us", found["match.cell"], ceilings=held, params=keys),
        row("sent_per_served.first", "ratio", found["sent.first"], params=size),
        row("sent_per_served.again", "ratio", found["sent.again"], params=size),
        row("cpu.get.first", "s", found["cpu.first"], ceilings=way, params=cpu),
        row("cpu.get.again", "s", found["cpu.again"], ceilings=way, params=cpu),
        row(
            "repair", "s", found["repair"], ceilings={"1 socket": found["repair.socket"]},
            params={**death, "per": "GB lost", "from": "the first copy"},
        ),
        row("repair.from_kill", "s", found["repair.from_kill"], params={**death, "to": "the last copy"}),
    ]  # fmt: skip


# --- a reader at a node that has nothing -------------------------------------------------------------------


class Reading:
    """The first node has everything; the reader's own node, the second one, has to fetch it."""

    def __init__(self, nodes: list[CellNode], options: Options, sockets: tuple[int, Pass]) -> None:
        self.nodes, self.size = nodes, options.working_set
        self.peer, self.socket_pass = sockets
        self._prefix = _spec("prefix", MATCH_BLOCK_BYTES)
        with nodes[0].client() as client:
            space = client.namespace(self._prefix)
            self._prefix_keys = space.keys(range(MATCH_BLOCKS * BLOCK_TOKENS))
            _put(space, self._prefix_keys, [prefaulted(MATCH_BLOCK_BYTES)] * MATCH_BLOCKS)
            self._chains = _fill(client.namespace(_spec("reads", BLOCK_BYTES)), self.size)
        with nodes[1].client() as client:
            self._await(client.namespace(self._prefix), [self._prefix_keys])
            self._await(client.namespace(_spec("reads", BLOCK_BYTES)), self._chains)

    @staticmethod
    def _await(space: Namespace, chains: list[Keys]) -> None:
        awaited(lambda: all(space.match(keys) == len(keys) for keys in chains), "the nodes to know of all blocks")

    def match(self) -> dict[str, float]:
        """µs of a look-up of the prefix, at a node that has it and at one that knows who has."""
        return {"match.here": self._match(self.nodes[0]), "match.cell": self._match(self.nodes[1])}

    def _match(self, node: CellNode) -> float:
        took = []
        with node.client() as client:
            space = client.namespace(self._prefix)
            for _ in range(MATCHES):
                begun = time.perf_counter()
                blocks = space.match(self._prefix_keys)
                took.append(time.perf_counter() - begun)
                if blocks != MATCH_BLOCKS:
                    raise RuntimeError(f"a chain of {MATCH_BLOCKS} blocks is known to {blocks}: {client.last_miss}")
        return min(took) * 1e6

    def served(self) -> dict[str, float]:
        """Everything read twice: the first time it is fetched."""
        with self.nodes[1].client() as client:
            space = client.namespace(_spec("reads", BLOCK_BYTES))
            into = [prefaulted(BLOCK_BYTES) for _ in self._chains[0]]
            first, again = (self._read(space, into) for _ in range(2))
            for keys in self._chains:
                space.evict(keys)
            self._await(space, self._chains)  # it knows that only the holder has them
        raw = cpu_seconds([self.peer], self._raw) / self.size * 1e9
        return {
            "sent.first": first[0], "sent.again": again[0], "cpu.first": first[1], "cpu.again": again[1],
            "cpu.socket": raw,
        }  # fmt: skip

    def _raw(self) -> None:
        self.socket_pass()

    def _read(self, space: Namespace, into: list[Bytes]) -> tuple[float, float]:
        """Bytes that nodes sent each other for a byte served, and CPU seconds of nodes and reader for a GB."""
        before = sum(node.sent() for node in self.nodes)

        def read() -> None:
            for keys in self._chains:
                if space.get(keys, into) != len(keys):
                    raise RuntimeError(f"a chain was not given: {space.client.last_miss}")

        cpu = cpu_seconds([node.pid for node in self.nodes], read)
        return (sum(node.sent() for node in self.nodes) - before) / self.size, cpu / self.size * 1e9


# --- a node that is killed ---------------------------------------------------------------------------------


def repair(options: Options, sockets: tuple[int, Pass]) -> dict[str, float]:
    """Seconds for a GB that has one copy left, from the first new one on; and from the kill, whatever is lost."""
    settings: dict[str, str | int | float] = {
        "replicas": 2, "suspect_after": SUSPECT_AFTER, "gone_after": GONE_AFTER, "repair_rate": REPAIR_RATE,
    }  # fmt: skip
    begun = time.perf_counter()
    sockets[1]()
    raw = (time.perf_counter() - begun) / options.working_set * 1e9
    with cell(NODES, 3 * options.working_set, **settings) as nodes:
        with nodes[0].client() as client:
            _fill(client.namespace(_spec("repair", BLOCK_BYTES)), options.working_set, "replicated")
        left, lost = nodes[1:], options.working_set
        nodes[0].kill()
        killed = time.perf_counter()
        before = sum(node.held() for node in left)
        began = awaited(lambda: sum(node.held() for node in left) > before, "the first copy")
        ended = awaited(lambda: sum(node.held() for node in left) >= 2 * lost, "the last copy")
        held = sum(node.held() for node in left) - before
    return {
        "repair": (ended - began) / held * 1e9, "repair.from_kill": ended - killed, "repair.socket": raw,
    }  # fmt: skip


def _fill(space: Namespace, size: int, ack: str = "visible") -> list[Keys]:
    """Chains of new blocks, ``size`` bytes in all."""
    blocks = min(SLICE, size) // BLOCK_BYTES
    dice = np.random.default_rng(0)
    data = [dice.integers(0, 255, BLOCK_BYTES, np.uint8) for _ in range(blocks)]
    chains = []
    for nth in range(size // (blocks * BLOCK_BYTES)):
        keys = space.keys(range(nth << 20, (nth << 20) + blocks * BLOCK_TOKENS))
        _put(space, keys, data, ack)
        chains.append(keys)
    return chains


def _put(space: Namespace, keys: Keys, data: list[Bytes], ack: str = "visible") -> None:
    done = space.put(keys, data, ack=ack, timeout=CALL_TIMEOUT)  # type: ignore[arg-type]
    if done.stored != len(keys) or done.failed:
        raise RuntimeError(f"only {done.stored} of {len(keys)} blocks were stored: {done.reasons}")


def _spec(name: str, block_bytes: int) -> NamespaceSpec:
    return NamespaceSpec(f"bench cluster {name}", BLOCK_TOKENS, block_bytes)
