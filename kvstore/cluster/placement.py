"""Where new blocks go, and which copies are owed. Pure: whoever knows the same of the cell decides the same.

New blocks go to the node on the writer's own host, if there is one that takes blocks. Else to the holder of the block
before; unless most of the chain is new (then it only begins as many others do), or the holder has taken more than
others lately and what there is of the chain is small: then they go somewhere else. Where, rendezvous on the first new
key says: of the few nodes that come first the one with the most room. A chain is whole on each node that has a block of
it, since a node keeps no block without those before it: so all new blocks of a chain go to one node, which is given a
copy of what it lacks before them. Only new blocks are placed, so differing views of the cell cost a copy too many and
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from kvstore.cluster.rendezvous import ranked
from kvstore.cluster.room import Room

KNOWN = 1 / 4  # of its new blocks that a chain has before them, else they are a branch off what many share
CHOICES = 4  # nodes of the rendezvous order that are compared: with more, writers who know the same crowd the same node
SLACK = 0.5  # of its capacity that a node may have taken more than the mean before branches move on
MOVED = 1 / 8  # of a node's capacity that is copied at most for that


@dataclass(frozen=True, slots=True)
class Tail:
    """The last block before the new ones: who holds it, and how many blocks up to it each of those holds in a row."""

    runs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Run:
    """New blocks ``first`` to ``end`` of a chain go to ``node``."""

    node: int
    first: int
    end: int


def place(
    first: int, end: int, block_bytes: int, key_of: Callable[[int], bytes], rooms: Mapping[int, Room],
    tail: Tail | None = None, here: int | None = None,
) -> list[Run]:  # fmt: skip
    """Where blocks ``first`` to ``end`` go: all to one node; nobody takes any: none. ``here``: on the writer's host."""
    takers = {node: room for node, room in rooms.items() if room.takes and room.capacity_bytes > 0}
    if first >= end or not takers:
        return []
    if here in takers:
        return [Run(here, first, end)]
    holder = _holder(tail, takers) if tail is not None and first >= KNOWN * (end - first) else None
    if holder is not None and _goes_on(holder, takers.values(), first * block_bytes):
        return [Run(holder.node, first, end)]
    return [Run(next_room(key_of(first), takers.values()).node, first, end)]


def next_room(key: bytes, takers: Collection[Room]) -> Room:
    """Of the first few nodes in the order of ``key`` the one that has the most room."""
    return min(ranked(key, takers)[:CHOICES], key=lambda room: room.load)


def _holder(tail: Tail, takers: Mapping[int, Room]) -> Room | None:
    """Of those that hold the block before the one with the most room."""
    return min((takers[node] for node in sorted(tail.runs) if node in takers), key=lambda room: room.load, default=None)


def _goes_on(holder: Room, takers: Collection[Room], before: int) -> bool:
    """Whether a chain with so many bytes before the new ones stays where it is."""
    mean = sum(room.load for room in takers) / len(takers)
    return holder.load <= mean + SLACK or before > MOVED * holder.capacity_bytes


# --- copies ------------------------------------------------------------------------------------------------


def replicas(key: bytes, holders: Collection[Room], rooms: Iterable[Room], copies: int) -> list[Room]:
    """Which nodes are to get a copy so that there are ``copies``: in zones without one first, then on machines without
    one. ``key``: of the first block of a run, so that the copies of a run stay together too."""
    had = {room.node for room in holders}
    free = [room for room in ranked(key, rooms) if room.node not in had and room.takes and room.capacity_bytes > 0]
    return _spread(list(holders), free, copies)[len(holders) :]


def primaries(key: bytes, holders: Collection[Room], copies: int) -> list[Room]:
    """Which of the copies are owed, up to ``copies``: the others are extra, and go first. Spread like ``replicas``."""
    return _spread([], ranked(key, holders), copies)


def _spread(chosen: list[Room], candidates: list[Room], copies: int) -> list[Room]:
    """``chosen`` and so many of ``candidates``, best first, that share neither zone nor machine if that can be."""
    found, left = list(chosen), list(candidates)
    while len(found) < copies and left:
        zones, machines = {room.zone for room in found}, {room.machine for room in found}
        best = min(left, key=lambda room: (room.machine in machines, bool(room.zone) and room.zone in zones))
        found.append(best)
        left.remove(best)
    return found
