"""Which node of the cell holds which blocks, in which tiers: a hint, kept up to date by the nodes' events."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.cluster.holder_sets import NOBODY, HolderSet, HolderSets, nodes_of
from kvstore.cluster.key_table import ABSENT, KeyTable, Numbers, Places
from kvstore.core.errors import Busy, InvalidArgument
from kvstore.core.keys import KEY_BYTES, KeyArray, key_array

MAX_NODES = 255
MAX_NAMESPACES = 65_535
MAX_SETS = 65_536  # combinations of nodes and tiers that blocks lie in
PIECE = 256  # keys handled under the lock at once
_SCAN = 4096  # slots looked at under the lock at once

Masks: TypeAlias = npt.NDArray[np.object_]  # of whole numbers: bit n is node n


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive blocks that the same nodes hold: bit n of a mask is node n."""

    first: int
    end: int
    nodes: int
    memory: int  # those that have them in DRAM or HBM


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds how much of a chain, from block 0 on, by node number.

    ``prefix``: leading blocks that the node holds in any tier. ``prefix_dram``: those in DRAM or HBM. Both name the
    nodes that hold block 0 (so). ``cell``: leading blocks that each have some holder; ``spans`` says who, in order.
    """

    prefix: dict[int, int] = field(default_factory=dict)
    prefix_dram: dict[int, int] = field(default_factory=dict)
    cell: int = 0
    spans: tuple[Span, ...] = ()


class PrefixIndex:
    """Up to ``max_entries`` blocks, however many nodes hold each. Safe to use from several threads.

    Past the ceiling new blocks are not noted, and counted in ``dropped``: a block nobody knows of is a miss elsewhere,
    and still a hit on its own node.
    """

    def __init__(self, max_entries: int, max_sets: int = MAX_SETS) -> None:
        if max_entries < 1:
            raise InvalidArgument(
                f"max_entries is {max_entries}; an index has room for at least one", field="max_entries"
            )
        self.max_entries = max_entries
        self.entries = 0
        self.dropped = 0
        self._lock = threading.Lock()
        self._table = KeyTable(max_entries)
        self._sets = HolderSets(max_sets)
        self._nodes: dict[bytes, int] = {}
        self._roots: dict[bytes, int] = {}
        self._counts: dict[int, int] = {}  # by namespace number: entries

    @property
    def nbytes(self) -> int:
        """Bytes of memory behind it, once all of the table has been touched."""
        return self._table.nbytes + self._sets.nbytes

    # --- nodes ---------------------------------------------------------------------------------------------

    def add_node(self, node_id: bytes) -> int:
        """The number of a node: the one it has, or the least that is free. Raises Busy past 255 nodes."""
        with self._lock:
            if node_id not in self._nodes:
                taken = set(self._nodes.values())
                free = next((number for number in range(MAX_NODES) if number not in taken), None)
                if free is None:
                    raise Busy(f"a cell has at most {MAX_NODES} nodes; make a second cell", limit=MAX_NODES)
                self._nodes[node_id] = free
            return self._nodes[node_id]

    def remove_node(self, node: int) -> None:
        """The node holds nothing any more, and its number may be given to another."""
        with self._lock:
            self._sets.drop(node)
        self._sweep()
        with self._lock:
            self._nodes = {node_id: number for node_id, number in self._nodes.items() if number != node}

    # --- events --------------------------------------------------------------------------------------------

    def stored(self, node: int, root: bytes, first_block: int, keys: KeyArray, tiers: int) -> None:
        """The node has these blocks in these tiers (bits of kvstore.cluster.sink), and in no others."""
        if not tiers:
            self.removed(node, root, keys)
            return
        for piece in _pieces(keys):
            with self._lock:
                namespace = self._namespace(root)
                if namespace is None:
                    self.dropped += len(piece)
                    continue
                places = self._table.find(namespace, piece)
                self._add(namespace, _distinct(piece[places < 0]), node, tiers)
                self._change(places[places >= 0], node, tiers)

    def removed(self, node: int, root: bytes, keys: KeyArray) -> None:
        """The node does not have these blocks, of any chains, any more."""
        for piece in _pieces(keys):
            with self._lock:
                namespace = self._roots.get(root)
                if namespace is not None:
                    places = self._table.find(namespace, piece)
                    self._change(places[places >= 0], node, 0)

    def drop_namespace(self, node: int, root: bytes) -> None:
        """The node has no block of this namespace any more."""
        for scan in self._scans():
            with self._lock:
                namespace = self._roots.get(root)
                if namespace is None:
                    return
                used = (self._table.number[scan] != 0) & (self._table.namespace[scan] == namespace)
                self._change(scan.start + np.flatnonzero(used), node, 0)

    def begin_snapshot(self, node: int) -> None:
        """Everything the node has will be told again, until ``end_snapshot``."""
        with self._lock:
            self._sets.doubt(node)

    def end_snapshot(self, node: int) -> None:
        """What was not told since ``begin_snapshot`` is gone."""
        with self._lock:
            self._sets.drop(node, doubted_only=True)
        self._sweep()

    # --- questions -----------------------------------------------------------------------------------------

    def lookup(self, root: bytes, keys: KeyArray) -> Holders:
        """Who holds how much of the chain ``keys``, which begins at block 0."""
        spans: list[Span] = []
        first, size = 0, PIECE
        while first < len(keys) and self._follow(root, first, keys[first : first + size], spans):
            first, size = first + size, 2 * size
        cell = spans[-1].end if spans else 0
        prefix = _prefixes([(span.end, span.nodes) for span in spans])
        return Holders(prefix, _prefixes([(span.end, span.memory) for span in spans]), cell, tuple(spans))

    def holders_of(self, root: bytes, key: bytes) -> tuple[tuple[int, int], ...]:
        """Each node that has one block, and its tiers."""
        with self._lock:
            namespace = self._roots.get(root)
            if namespace is None:
                return ()
            keys = key_array(key)
            held = self._sets[int(self._table.numbers(self._table.find(namespace, keys), namespace, keys)[0])]
        return tuple((node, held.tiers(node)) for node in nodes_of(held.anywhere))

    def masks(self, root: bytes, keys: KeyArray) -> Masks:
        """Who has each of these blocks, of any chains: one bit a node."""
        found = np.zeros(len(keys), object)
        for at in range(0, len(keys), PIECE):
            piece = keys[at : at + PIECE]
            with self._lock:
                namespace = self._roots.get(root)
                if namespace is None:
                    return found
                numbers = self._table.numbers(self._table.find(namespace, piece), namespace, piece)
                for number in np.unique(numbers).tolist():
                    found[at : at + PIECE][numbers == number] = self._sets[number].anywhere
        return found

    def blocks_by_node(self) -> dict[int, int]:
        """How many blocks each node holds."""
        with self._lock:
            counted = self._sets.counted()
        found: Counter[int] = Counter()
        for mask, count in counted:
            for node in nodes_of(mask):
                found[node] += count
        return dict(found)

    def _follow(self, root: bytes, first: int, keys: KeyArray, spans: list[Span]) -> bool:
        """Adds to ``spans`` who holds the blocks ``keys`` from ``first`` on. False: there was one that nobody holds.

        Places are found without the lock: entries do not move, and what lies there is looked at again under it.
        """
        namespace = self._roots.get(root)
        if namespace is None:
            return False
        places = self._table.find(namespace, keys)
        for at in range(0, len(keys), PIECE):
            piece = slice(at, at + PIECE)
            with self._lock:
                numbers = self._table.numbers(places[piece], namespace, keys[piece])
                end = self._spans(first + at, numbers, spans)
            if end < first + min(at + PIECE, len(keys)):
                return False
        return True

    def _spans(self, first: int, numbers: Numbers, spans: list[Span]) -> int:
        """Adds to ``spans`` until a block that nobody holds; answers which one, or the end."""
        starts = np.concatenate(([0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1))
        ends = (first + np.append(starts[1:], len(numbers))).tolist()
        at = first
        for number, end in zip(numbers[starts].tolist(), ends, strict=True):
            held = self._sets[number]
            nodes, memory = held.anywhere, held.memory
            if not nodes:
                break
            if spans and (spans[-1].nodes, spans[-1].memory) == (nodes, memory):
                spans[-1] = Span(spans[-1].first, end, nodes, memory)
            else:
                spans.append(Span(at, end, nodes, memory))
            at = end
        return at

    # --- changing entries, under the lock ------------------------------------------------------------------

    def _add(self, namespace: int, keys: KeyArray, node: int, tiers: int) -> None:
        """New entries for absent keys."""
        if not len(keys):
            return
        placed = 0
        number = self._sets.number(HolderSet().having(node, tiers))
        if number is not None:
            fitting = keys[: self.max_entries - self.entries]
            placed = int(np.count_nonzero(self._table.insert(namespace, fitting, number) != ABSENT))
            self._sets.count(number, placed)
        self._counted(namespace, placed)
        self.dropped += len(keys) - placed

    def _change(self, places: Places, node: int, tiers: int) -> None:
        """Entries whose node now has them in ``tiers``, 0: not at all."""
        numbers = self._table.number[places]
        for old in np.unique(numbers).tolist():
            held = self._sets[old]
            wanted = held.having(node, tiers)
            if wanted == held:
                continue
            mine = np.unique(places[numbers == old])
            known = tiers in (0, held.tiers(node))  # nothing is added: it goes, or is confirmed
            new = self._sets.number(wanted, known) if wanted.anywhere else NOBODY
            if new is None:
                self.dropped += len(mine)
            else:
                self._move(mine, old, new)

    def _move(self, places: Places, old: int, new: int) -> None:
        if new == NOBODY:
            namespaces, counts = np.unique(self._table.namespace[places], return_counts=True)
            self._table.remove(places)
            for namespace, count in zip(namespaces.tolist(), counts.tolist(), strict=True):
                self._counted(namespace, -count)
        else:
            self._table.number[places] = new
            self._sets.count(new, len(places))
        self._sets.count(old, -len(places))

    def _counted(self, namespace: int, change: int) -> None:
        self.entries += change
        self._counts[namespace] += change
        if not self._counts[namespace]:  # its number can be given out again
            del self._counts[namespace]
            self._roots = {root: number for root, number in self._roots.items() if number != namespace}

    def _namespace(self, root: bytes) -> int | None:
        """The number of a namespace, a new one if need be; None: there are too many."""
        number = self._roots.get(root)
        if number is None and len(self._roots) < MAX_NAMESPACES:
            number = next(n for n in range(len(self._roots) + 1) if n not in self._counts)
            self._roots[root], self._counts[number] = number, 0
        return number

    def _sweep(self) -> None:
        """After a change of all sets: frees the entries that nobody holds, and joins numbers that mean the same."""
        for scan in self._scans():
            with self._lock:
                numbers = self._table.number[scan].copy()
                for old in np.unique(numbers).tolist():
                    new = self._sets.canonical(old)
                    if new != old:
                        self._move(scan.start + np.flatnonzero(numbers == old), old, new)

    def _scans(self) -> Iterator[slice]:
        return (slice(at, min(at + _SCAN, self._table.slots)) for at in range(0, self._table.slots, _SCAN))


def _pieces(keys: KeyArray) -> Iterator[KeyArray]:
    return (keys[at : at + PIECE] for at in range(0, len(keys), PIECE))


def _distinct(keys: KeyArray) -> KeyArray:
    """Without repetitions."""
    if len(keys) < 2 or len(np.unique(keys[:, 0])) == len(keys):
        return keys
    raw = np.ascontiguousarray(keys).view(f"V{KEY_BYTES}").ravel()
    seen = {one.tobytes(): at for at, one in reversed(list(enumerate(raw)))}
    return keys[sorted(seen.values())]


def _prefixes(ends: list[tuple[int, int]]) -> dict[int, int]:
    """By node how far it holds everything. ``ends``: of each span the end, and the mask of nodes."""
    found: dict[int, int] = {}
    if not ends:
        return found
    alive, before = ends[0][1], 0
    for end, mask in ends:
        for node in nodes_of(alive & ~mask):
            found[node] = before
        alive &= mask
        before = end
    for node in nodes_of(alive):
        found[node] = before
    return found
