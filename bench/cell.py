"""A cell of simulated nodes under a trace: the real placement, index and eviction code, without bytes and network.

Every node has an index and an eviction policy of its own, as a real one has, and like a real one it keeps no block
without those before it: what goes to a node that lacks these is stored after a copy of them. What happens is told in
batches of events (coalesced over 100 ms, then on their way for a while) to one PrefixIndex that stands for those of all
nodes, and to the figures by which placement chooses; each request is looked up and placed by them, however old.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.cli.bench.trace import BLOCK_TOKENS, Request, trace_keys
from kvstore.cluster.placement import Tail, place
from kvstore.cluster.prefix_index import Holders, PrefixIndex
from kvstore.cluster.room import Room
from kvstore.cluster.sink import DRAM
from kvstore.cluster.taken import MEMORY
from kvstore.core.keys import KEY_BYTES, KeyArray
from kvstore.tiers.eviction import DEFAULT_POLICY, make_policy
from kvstore.tiers.index import READY, BlockIndex
from kvstore.v1 import events_pb2 as pb

COALESCED = 0.1  # seconds
TRANSPORT = 0.002  # seconds that a batch is on its way
BLOCK_BYTES = 2 << 20
ROOT = b"trace".ljust(16)
Rows: TypeAlias = npt.NDArray[np.int64]
_NOTHING: Rows = np.empty(0, np.int64)
_PIECE = 256
_NEVER_READ = 1 << 30  # tokens that a copy counts as appended: it goes first until somebody reads it
_UNIT_TOKENS = 512  # a victim takes so much of its branch with it, if it was used at the same time: blocks of 16 tokens
# one by one would take three times as long, and go the same way


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
        self._unit = max(1, _UNIT_TOKENS // block_tokens)
        self.taken = 0
        self.told: list[tuple[int, KeyArray]] = []  # first block of a stored run, -1: removed
        self.sequence = 0

    @property
    def free(self) -> int:
        return self.capacity - len(self.index)

    def put(self, keys: KeyArray, first: int, parent: int, request: int, now: float, appended: int = 0) -> int:
        """Stores new blocks in pieces; how many there was room for. ``parent``: row of the block before, -1: none."""
        done = 0
        while done < len(keys):
            piece = keys[done : done + self._make_room(min(_PIECE, len(keys) - done), parent)]
            if not len(piece):
                break
            rows = self.index.insert_run(0, piece, parent, first + done)
            self.index.state[rows] = READY
            self.policy.inserted(rows, parent, request, appended, now)
            self.told.append((first + done, piece))
            parent = int(rows[-1])
            done += len(piece)
        self.taken += done
        return done

    def follow(self, keys: KeyArray) -> Rows:
        """The leading blocks of a chain that are here."""
        rows = self.index.find(0, keys)
        absent = np.flatnonzero(rows < 0)
        return rows[: int(absent[0])] if absent.size else rows

    def _make_room(self, count: int, parent: int) -> int:
        """Evicts for ``count`` blocks below ``parent``; how many there is room for."""
        gone: list[tuple[int, int]] = []
        index = self.index
        while (lacking := len(index) + count - self.capacity) > 0:
            row = self.policy.victim(lambda row: row != parent)
            if row is None:
                break
            self._evict(row, min(lacking, self._unit), parent, gone)
        if gone:
            self.told.append((-1, np.array(gone, np.uint64)))
        return min(count, self.capacity - len(index))

    def _evict(self, row: int, most: int, kept: int, gone: list[tuple[int, int]]) -> None:
        """A leaf, and what it alone hangs on."""
        index, last = self.index, float(self.policy.last_use(np.array([row]))[0])
        for _ in range(most):
            gone.append((index.key_low_at[row], index.key_high_at[row]))
            above = index.parent_at[row]
            self.policy.removed(row)
            index.remove(row)
            row = above
            if row < 0 or row == kept or index.children_at[row]:
                return
            if index.block_at[row] % self._unit == 0 and self.policy.last_use(np.array([row]))[0] != last:
                return

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
    copied: int = 0  # blocks stored because a node was given what follows them
    moved: int = 0  # chains that went on elsewhere than where they were
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
        keys, figures, now = request.keys, self.figures, request.seconds
        holders = self.seen.lookup(ROOT, keys)
        reader, path = self._read(keys, holders)
        found = len(path)
        figures.requests += 1
        figures.blocks += len(keys)
        figures.hits += found
        figures.stale += holders.cell - found
        if found:
            self.nodes[reader].policy.touched(path, number, now, len(keys))
        tail = Tail({node: blocks for node, blocks in holders.prefix.items() if blocks == found}) if found else None
        for run in place(found, len(keys), BLOCK_BYTES, partial(_key, keys), self.rooms, tail):
            figures.moved += found > 0 and run.node != reader
            self._put(self.nodes[run.node], keys, run.first, run.end, number, now)

    def _read(self, keys: KeyArray, holders: Holders) -> tuple[int, Rows]:
        """From the node that has the most, or turns out to; and the rows there."""
        reader, path = -1, _NOTHING
        for node, blocks in sorted(holders.prefix.items(), key=lambda one: -one[1]):
            if blocks <= len(path):
                break
            rows = self.nodes[node].follow(keys[:blocks])
            if len(rows) > len(path):
                reader, path = node, rows
        return reader, path

    def _put(self, node: Node, keys: KeyArray, first: int, end: int, number: int, now: float) -> None:
        """Stores what the node lacks of a run, after a copy of what it lacks before that."""
        before = node.follow(keys[:first])
        if len(before) < first:
            lacking, parent = keys[len(before) : first], int(before[-1]) if len(before) else -1
            copied = node.put(lacking, len(before), parent, 0, now, _NEVER_READ)
            self.figures.copied += copied
            if copied < len(lacking):
                return
            before = node.follow(keys[:first])
            node.policy.touched(before, number, now, len(keys))
        here = node.follow(keys[:end])
        node.put(keys[len(here) : end], len(here), int(here[-1]) if len(here) else -1, number, now)


def _key(keys: KeyArray, block: int) -> bytes:
    raw: bytes = keys[block].tobytes()
    return raw
