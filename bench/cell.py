"""A cell of simulated nodes under a trace: the real placement, index and eviction code, without bytes and network.

Every node has an index and an eviction policy of its own, as a real one has. What happens there is told in batches of
events (coalesced over 100 ms, then on their way for a while) to one PrefixIndex that stands for those of all nodes, and
to the figures by which placement chooses; each request is looked up and placed by them, however old they are.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from kvstore.cli.bench.trace import BLOCK_TOKENS, Request, trace_keys
from kvstore.cluster.holder_sets import nodes_of
from kvstore.cluster.placement import Tail, place
from kvstore.cluster.prefix_index import Holders, PrefixIndex
from kvstore.cluster.room import Room
from kvstore.cluster.sink import DRAM
from kvstore.core.keys import KEY_BYTES, KeyArray
from kvstore.tiers.eviction import DEFAULT_POLICY, make_policy
from kvstore.tiers.index import READY, BlockIndex
from kvstore.v1 import events_pb2 as pb

COALESCED = 0.1  # seconds
TRANSPORT = 0.002  # seconds that a batch is on its way
MEMORY = 60.0  # seconds after which half of what a node took is forgotten
BLOCK_BYTES = 2 << 20
ROOT = b"trace".ljust(16)
_PIECE = 256


def fine(trace: list[Request], block_tokens: int) -> list[Request]:
    """The trace in smaller blocks. Its clock has steps of 3 s: the requests of a step are spread evenly over it."""
    parts = np.arange(BLOCK_TOKENS // block_tokens, dtype=np.uint64)
    clock = [request.seconds for request in trace]
    sizes = Counter(clock)
    starts = sorted(sizes)
    following = dict(zip(starts, [*starts[1:], starts[-1] + 3.0], strict=True))
    made, before = [], 0
    for number, request in enumerate(trace):
        if number and clock[number] != clock[number - 1]:
            before = number
        share = (number - before) / sizes[clock[number]]
        seconds = clock[number] + share * (following[clock[number]] - clock[number])
        ids = (request.keys[:, 1:] * np.uint64(len(parts)) + parts).reshape(-1)
        made.append(Request(seconds, request.tokens, trace_keys(ids)))
    return made


class Node:
    """One node: what it holds, and what it has to tell."""

    def __init__(self, node_id: bytes, capacity: int, block_tokens: int) -> None:
        self.node_id, self.capacity = node_id, capacity
        self.index = BlockIndex(capacity)
        self.policy = make_policy(DEFAULT_POLICY, self.index, lambda _: block_tokens)
        self.taken = 0
        self.told: list[tuple[int, KeyArray]] = []  # first block of a stored run, -1: removed
        self.sequence = 0

    @property
    def free(self) -> int:
        return self.capacity - len(self.index)

    def put(self, keys: KeyArray, first: int, parent: int, request: int, now: float) -> int:
        """Stores new blocks in pieces; how many there was room for."""
        done = 0
        while done < len(keys):
            piece = keys[done : done + _PIECE]
            if not self._make_room(len(piece), parent):
                break
            rows = self.index.insert_run(0, piece, parent, first + done)
            self.index.state[rows] = READY
            self.policy.inserted(rows, parent, request, 0, now)
            self.told.append((first + done, piece))
            parent = int(rows[-1])
            done += len(piece)
        self.taken += done
        return done

    def _make_room(self, count: int, parent: int) -> bool:
        gone: list[tuple[int, int]] = []
        index = self.index
        while len(index) + count > self.capacity:
            row = self.policy.victim(lambda row: row != parent)
            if row is None:
                break
            gone.append((index.key_low_at[row], index.key_high_at[row]))
            self.policy.removed(row)
            index.remove(row)
        if gone:
            self.told.append((-1, np.array(gone, np.uint64)))
        return len(index) + count <= self.capacity

    def batch(self) -> pb.EventBatch:
        """What there is to tell, on the wire."""
        self.sequence += 1
        message = pb.EventBatch(node_id=self.node_id, boot_id=self.node_id, sequence=self.sequence)
        for first, keys in self.told:
            if first < 0:
                message.events.add().removed.CopyFrom(pb.BlockRun(root=ROOT, keys=keys.tobytes()))
            else:
                run = pb.BlockRun(
                    root=ROOT, parent=bytes(KEY_BYTES), first_block=first, keys=keys.tobytes(), tiers=DRAM
                )
                message.events.add().stored.CopyFrom(run)
        return message


@dataclass(slots=True)
class Figures:
    """What a run came to."""

    requests: int = 0
    blocks: int = 0
    hits: int = 0
    stale: int = 0  # blocks that the index named and that were gone
    twice: int = 0  # blocks stored that another node had
    runs: int = 0
    stored: int = 0
    batches: int = 0
    events: int = 0
    keys: int = 0  # named in events
    event_bytes: int = 0
    seconds: float = 0.0
    resident: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.hits / max(self.blocks, 1)


@dataclass(slots=True)
class _Told:
    """One node's events of 100 ms, on their way."""

    at: float
    node: int
    runs: list[tuple[int, KeyArray]]
    free: int


class Cell:
    """Serves a trace. ``capacity``: blocks of all nodes together. Writers have no node on their own hosts."""

    def __init__(self, nodes: int, capacity: int, block_tokens: int) -> None:
        self.nodes = [Node(b"%016d" % number, capacity // nodes, block_tokens) for number in range(nodes)]
        self.seen = PrefixIndex(capacity + capacity // 8)  # the rest: blocks that are told to be gone a little later
        for node in self.nodes:
            self.seen.add_node(node.node_id)
        size = capacity // nodes * BLOCK_BYTES
        self.rooms = {at: Room(at, node.node_id, size, free_bytes=size) for at, node in enumerate(self.nodes)}
        self.figures = Figures()
        self._way: deque[_Told] = deque()
        self._tick = self._forgot = 0.0

    def run(self, trace: list[Request]) -> Figures:
        for number, request in enumerate(trace, 1):
            self._advance(request.seconds)
            if len(request.keys):
                self._serve(request, number)
        figures = self.figures
        figures.seconds = trace[-1].seconds - trace[0].seconds
        figures.resident = [len(node.index) for node in self.nodes]
        figures.taken = [node.taken for node in self.nodes]
        figures.stored = sum(figures.taken)
        return figures

    # --- events --------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Batches whose 100 ms are over go out, those that have arrived are taken in."""
        if now >= self._tick:
            for at, node in enumerate(self.nodes):
                if node.told:
                    self._send(at, node)
            self._tick = (now // COALESCED + 1) * COALESCED
        while self._way and self._way[0].at <= now:
            self._take(self._way.popleft())

    def _send(self, at: int, node: Node) -> None:
        figures, message = self.figures, node.batch()
        figures.batches += 1
        figures.events += len(message.events)
        figures.keys += sum(len(keys) for _, keys in node.told)
        figures.event_bytes += message.ByteSize()
        self._way.append(_Told(self._tick + TRANSPORT, at, node.told, node.free))
        node.told = []

    def _take(self, told: _Told) -> None:
        new = 0
        for first, keys in told.runs:
            if first < 0:
                self.seen.removed(told.node, ROOT, keys)
            else:
                self.seen.stored(told.node, ROOT, first, keys, DRAM)
                new += len(keys)
        self._forget(told.at)
        room = self.rooms[told.node]
        self.rooms[told.node] = replace(
            room, free_bytes=told.free * BLOCK_BYTES, taken_bytes=room.taken_bytes + new * BLOCK_BYTES
        )

    def _forget(self, now: float) -> None:
        left = 0.5 ** ((now - self._forgot) / MEMORY)
        if left < 0.98:
            self._forgot = now
            self.rooms = {
                at: replace(room, taken_bytes=int(room.taken_bytes * left)) for at, room in self.rooms.items()
            }

    # --- requests ------------------------------------------------------------------------------------------

    def _serve(self, request: Request, number: int) -> None:
        keys, figures = request.keys, self.figures
        holders = self.seen.lookup(ROOT, keys)
        found, paths = self._read(keys, holders)
        figures.requests += 1
        figures.blocks += len(keys)
        figures.hits += found
        figures.stale += holders.cell - found
        for node, rows in paths.items():
            path = np.concatenate(rows)
            self.nodes[node].policy.touched(path, number, request.seconds, len(path) + len(keys) - found)
        tail = _tail(holders, found)
        runs = place(found, len(keys), BLOCK_BYTES, partial(_key, keys), self.rooms, tail)
        figures.runs += len(runs)
        for run in runs:
            self._put(self.nodes[run.node], keys, run.first, run.end, number, request.seconds)

    def _read(
        self, keys: KeyArray, holders: Holders
    ) -> tuple[int, dict[int, list[np.ndarray[tuple[int], np.dtype[np.int64]]]]]:
        """Reads span after span from a holder, the next one where it is gone; blocks found, and rows by node."""
        paths: dict[int, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        at = 0
        for span in holders.spans:
            for node in nodes_of(span.nodes):
                if at == span.end:
                    break
                rows = self.nodes[node].index.find(0, keys[at : span.end])
                absent = np.flatnonzero(rows < 0)
                got = int(absent[0]) if absent.size else len(rows)
                if got:
                    paths.setdefault(node, []).append(rows[:got])
                at += got
            if at < span.end:
                break
        return at, paths

    def _put(self, node: Node, keys: KeyArray, first: int, end: int, number: int, now: float) -> None:
        """Stores what the node does not have of a run."""
        while first < end:
            rows = node.index.find(0, keys[max(first - 1, 0) : end])
            parent = int(rows[0]) if first else -1
            rows = rows[1:] if first else rows
            present = np.flatnonzero(rows >= 0)
            count = int(present[0]) if present.size else len(rows)
            if not count:
                first += 1 + int((rows[1:] < 0).argmax() if (rows[1:] < 0).any() else len(rows) - 1)
                continue
            if node.put(keys[first : first + count], first, parent, number, now) < count:
                return
            first += count


def _key(keys: KeyArray, block: int) -> bytes:
    return keys[block].tobytes()


def _tail(holders: Holders, found: int) -> Tail | None:
    """Who holds the last block found, and how many in a row up to it."""
    spans = [span for span in holders.spans if span.first < found]
    if not spans:
        return None
    runs: dict[int, int] = {}
    for node in nodes_of(spans[-1].nodes):
        first = found
        for span in reversed(spans):
            if not span.nodes >> node & 1:
                break
            first = span.first
        runs[node] = found - first
    return Tail(runs)
